/* From the text of an address to the socket addresses for connect and bind.
 * Numbers and "localhost" are resolved immediately, names by a helper
 * thread. */
#ifndef TOW_ENV_NET_RESOLVE_H_
#define TOW_ENV_NET_RESOLVE_H_

#include <stdbool.h>
#include <sys/socket.h>

#include "env/env.h"
#include "env/tuning.h"
#include "wire/address.h"

typedef struct tow_net_addresses {
    size_t count;
    struct {
        struct sockaddr_storage storage;
        socklen_t size;
    } items[TOW_NET_RESOLVE_COUNT_MAX];
} tow_net_addresses_t;

typedef enum tow_net_resolve_result {
    TOW_NET_RESOLVED,
    TOW_NET_RESOLVE_NAME, /* a name: resolve it on a helper thread */
    TOW_NET_RESOLVE_BAD,  /* *out_error has the reason */
} tow_net_resolve_result_t;

tow_net_resolve_result_t tow_net_resolve_inline(
    const tow_address_t *address, tow_net_addresses_t *out_addresses,
    tow_status_t *out_error);

/* Calls the system's resolver, which may take seconds. */
tow_status_t tow_net_resolve_blocking(const tow_address_t *address,
                                      tow_net_addresses_t *out_addresses)
    TOW_MUST_USE;

/* A name being resolved by a helper thread. */
typedef struct tow_net_resolve {
    tow_work_t work;
    tow_address_t address;
    tow_net_addresses_t addresses;
    void (*done)(void *context, struct tow_net_resolve *resolve,
                 tow_status_t take_status);
    void *context; /* lent */
} tow_net_resolve_t;

/* `address`, `done` and `context` are set; `done` runs once, on the loop. */
void tow_net_resolve_start(tow_env_t *env, tow_net_resolve_t *resolve);

#endif /* TOW_ENV_NET_RESOLVE_H_ */
