/* A plugin's client: made with options and key-value callbacks. */
#ifndef TOW_DEVICE_PJRT_CLIENT_IMPL_H_
#define TOW_DEVICE_PJRT_CLIENT_IMPL_H_

#include "device/pjrt/pjrt.h"
#include "device/pjrt/plugin.h"

/* With the values and the table of `open`. Any thread; may take long. */
tow_status_t tow_pjrt_client_create(const pjrt_plugin_t *plugin,
                                    const tow_pjrt_open_t *open,
                                    PJRT_Client **out_client) TOW_MUST_USE;
/* NULL is fine. */
void tow_pjrt_client_destroy(const pjrt_plugin_t *plugin, PJRT_Client *client);

#endif /* TOW_DEVICE_PJRT_CLIENT_IMPL_H_ */
