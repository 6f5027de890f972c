/* A trunk: one authenticated connection between two data planes, which carries
 * all lanes between them, in both directions, as TLS between hosts. One side
 * dials an address that the other listens on for lanes; a side that does not
 * listen, such as a client, always dials.
 *
 * A trunk is a link of the control plane until the handshake is complete; from
 * then on its bytes are messages of wire.h, and the link leaves reading and
 * writing to the functions here. A message is encrypted, or copied into the
 * socket, as a whole or not at all, so a trunk never refers to memory of users
 * between two calls. The bytes of a fragment are decrypted straight into the
 * region, which is looked up again for each piece, because its owner may close
 * it in between.
 *
 * All that happens on the loop's thread, so one core encrypts. A trunk over TLS
 * may have more connections, its subflows, on which other threads encrypt and
 * decrypt. Each has one direction, since two threads cannot use one TLS
 * connection. A large write is striped over them: each thread sends the next
 * fragment. The side that dialled the trunk dials them, too, when a large write
 * is sent for the first time. If one breaks, the trunk ends. */
#ifndef TOW_ENV_NET_DATA_TRUNK_H_
#define TOW_ENV_NET_DATA_TRUNK_H_

#include <stdbool.h>

#include "env/net/inbox.h"

typedef struct tow_data_trunk tow_data_trunk_t;
struct tow_net_link;

/* A peer has dialled us to carry lanes; takes over the link. */
void tow_data_trunk_accept(struct tow_net_link *link);
/* Reads once from the socket; returns whether bytes arrived. */
bool tow_data_trunk_read(tow_data_trunk_t *trunk);
/* Takes plain bytes that were read together with the handshake. */
void tow_data_trunk_take(tow_data_trunk_t *trunk, tow_net_input_t input);
/* The socket has taken bytes: messages that were refused may be sent. */
void tow_data_trunk_writable(tow_data_trunk_t *trunk);

#endif /* TOW_ENV_NET_DATA_TRUNK_H_ */
