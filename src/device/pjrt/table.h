/* A table of keys and values through which the hosts of one multi-host plugin
 * find each other. This one is local: hosts in one process share it. All
 * functions may be called from any thread; plugins call from their own. */
#ifndef TOW_DEVICE_PJRT_TABLE_H_
#define TOW_DEVICE_PJRT_TABLE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tow_pjrt_table tow_pjrt_table_t;

tow_status_t tow_pjrt_table_create(tow_pjrt_table_t **out_table) TOW_MUST_USE;
/* Nobody may be inside any more: stop it and wait for the drivers first. */
void tow_pjrt_table_destroy(tow_pjrt_table_t *table);

/* ALREADY_EXISTS when the key has another value; RESOURCE_EXHAUSTED past
 * TOW_PJRT_TABLE_BYTES_MAX. */
tow_status_t tow_pjrt_table_put(tow_pjrt_table_t *table, const char *key,
                                size_t key_size, const char *value,
                                size_t value_size) TOW_MUST_USE;
/* Waits until somebody puts the key, for at most `timeout_ns`: 0 looks once.
 * NOT_FOUND then says that it is not there, DEADLINE_EXCEEDED that it did not
 * come in time, CANCELLED that the table was stopped. The value is the
 * caller's, ends with a NUL that does not count, and goes to tow_free. */
tow_status_t tow_pjrt_table_get(tow_pjrt_table_t *table, const char *key,
                                size_t key_size, int64_t timeout_ns,
                                char **out_value, size_t *out_size)
    TOW_MUST_USE;
/* Everybody who waits, and who will, gets CANCELLED. */
void tow_pjrt_table_stop(tow_pjrt_table_t *table);

#endif /* TOW_DEVICE_PJRT_TABLE_H_ */
