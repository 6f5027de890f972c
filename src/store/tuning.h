/* Numbers of the store that someone may tune. */
#ifndef TOW_STORE_TUNING_H_
#define TOW_STORE_TUNING_H_

#include <stdint.h>

/* Objects that one client may have at a time, handles of consumed ones
 * included. An object's record takes 368 bytes in the controller, wherever its
 * shards are, so a client costs at most 96 MiB there, and the map's 8 MiB. Too
 * small, and a program with many small arrays is refused; too large, and one
 * client that forgets to release fills the controller's memory. */
#define TOW_LEDGER_OBJECT_COUNT_MAX (UINT64_C(1) << 18)

#endif /* TOW_STORE_TUNING_H_ */
