/* Which address of this host other hosts reach. */
#ifndef TOW_SUPERVISOR_ROUTE_H_
#define TOW_SUPERVISOR_ROUTE_H_

#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

/* The address from which packets to `to` leave this host: that of the interface
 * which the route takes. For an address that stands for all of this host, such
 * as 0.0.0.0: that of the default route. Nothing is sent. */
tow_status_t tow_route_source(const tow_address_t *to, char *host,
                              size_t capacity) TOW_MUST_USE;
/* The address that `name` stands for: a network interface of this host, or one
 * of its addresses. */
tow_status_t tow_route_named(const char *name, char *host, size_t capacity)
    TOW_MUST_USE;

#endif /* TOW_SUPERVISOR_ROUTE_H_ */
