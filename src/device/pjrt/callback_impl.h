/* The key-value callbacks of a client, over a table. */
#ifndef TOW_DEVICE_PJRT_CALLBACK_IMPL_H_
#define TOW_DEVICE_PJRT_CALLBACK_IMPL_H_

#include "device/pjrt/table.h"
#include "xla/pjrt/c/pjrt_c_api.h"

/* `table` is lent until the client is destroyed. */
void tow_pjrt_callbacks_set(PJRT_Client_Create_Args *args,
                            tow_pjrt_table_t *table);

#endif /* TOW_DEVICE_PJRT_CALLBACK_IMPL_H_ */
