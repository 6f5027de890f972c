/* The key-value store through which the hosts of one multi-host plugin find
 * each other. This one is local: hosts in one process share it. All functions
 * may be called from any thread; plugins call from their own. */
#ifndef TOW_DEVICE_PJRT_TABLE_H_
#define TOW_DEVICE_PJRT_TABLE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tow_pjrt_table tow_pjrt_table_t;

tow_status_t tow_pjrt_table_create(tow_pjrt_table_t **out_table) TOW_MUST_USE;
/* No call may be in progress: stop it and wait for the drivers first. */
void tow_pjrt_table_destroy(tow_pjrt_table_t *table);

/* ALREADY_EXISTS when the key has another value; RESOURCE_EXHAUSTED above
 * TOW_PJRT_TABLE_BYTES_MAX. */
tow_status_t tow_pjrt_table_put(tow_pjrt_table_t *table, const char *key,
                                size_t key_size, const char *value,
                                size_t value_size) TOW_MUST_USE;
/* Waits at most `timeout_ns` for the key. NOT_FOUND: a timeout of 0 and no key;
 * DEADLINE_EXCEEDED: no key in time; CANCELLED: the table was stopped. The
 * caller owns the value (tow_free); a NUL that does not count follows it. */
tow_status_t tow_pjrt_table_get(tow_pjrt_table_t *table, const char *key,
                                size_t key_size, int64_t timeout_ns,
                                char **out_value, size_t *out_size)
    TOW_MUST_USE;
/* All waiting and future calls return CANCELLED. */
void tow_pjrt_table_stop(tow_pjrt_table_t *table);

#endif /* TOW_DEVICE_PJRT_TABLE_H_ */
