/* Addresses of the control plane: "unix:PATH", "tcp:HOST:PORT" for loopback,
 * "tls:HOST:PORT" for anywhere (IPv6 as "tls:[::1]:7000"), and "sim:NAME"
 * inside the simulator. The text says whether a connection is encrypted, so
 * that both ends always agree. */
#ifndef TOW_WIRE_ADDRESS_H_
#define TOW_WIRE_ADDRESS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

#define TOW_ADDRESS_TEXT_MAX 255

typedef enum tow_address_kind {
    TOW_ADDRESS_UNIX,
    TOW_ADDRESS_TCP,
    TOW_ADDRESS_TLS,
    TOW_ADDRESS_SIM,
} tow_address_kind_t;

typedef struct tow_address {
    tow_address_kind_t kind;
    char host[TOW_ADDRESS_TEXT_MAX + 1]; /* host, path or simulated name */
    uint16_t port;                       /* tcp and tls */
} tow_address_t;

/* INVALID_ARGUMENT names what is wrong and shows the right form. */
tow_status_t tow_address_parse(const char *text, tow_address_t *out_address)
    TOW_MUST_USE;
/* A `capacity` of TOW_ADDRESS_TEXT_MAX + 32 is always enough. */
void tow_address_format(const tow_address_t *address, char *text,
                        size_t capacity);
/* True only if packets cannot leave this host: Unix sockets, 127.0.0.0/8, ::1,
 * "localhost", the simulator. Code that opens a socket for "localhost" must use
 * the loopback addresses without a resolver. */
bool tow_address_is_local(const tow_address_t *address);
/* Compares the text: two names of one host differ. */
bool tow_address_is_same(const tow_address_t *a, const tow_address_t *b);

#endif /* TOW_WIRE_ADDRESS_H_ */
