/* Tunable constants of the store. */
#ifndef TOW_STORE_TUNING_H_
#define TOW_STORE_TUNING_H_

#include <stdint.h>

/* Objects that one client may have at a time, including handles of consumed
 * ones. An object's record takes 368 bytes in the controller, wherever its
 * shards are, so a client costs at most 96 MiB there, and 8 MiB for the map.
 * Too small, and a program with many small arrays is refused; too large, and
 * one client that never releases fills the controller's memory. */
#define TOW_OBJECT_TABLE_OBJECT_COUNT_MAX (UINT64_C(1) << 18)

#endif /* TOW_STORE_TUNING_H_ */
