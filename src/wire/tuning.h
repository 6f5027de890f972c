/* Numbers of the wire that someone may tune. Limits that both ends must agree
 * on are no tuning: they stand in the headers and in docs/wire.md. */
#ifndef TOW_WIRE_TUNING_H_
#define TOW_WIRE_TUNING_H_

#include <stddef.h>

/* Cipher bytes that may wait in one direction of a TLS connection. Whoever
 * feeds reads in between, so a record (16 KiB) and one read of a socket is what
 * ever waits; reaching this is a mistake of ours, and it must not cost memory
 * without end. */
#define TOW_TLS_FEED_BYTES_MAX ((size_t)4 << 20)

/* How long a self-signed certificate holds. A cluster without an authority has
 * nobody to renew it, so the number is long; too short stops a cluster on a
 * forgotten day. */
#define TOW_CERTIFICATE_DAYS 3650

/* A certificate also holds this long before it was made: clocks of hosts
 * differ. */
#define TOW_CERTIFICATE_BACKDATED_SECONDS 86400

/* Certificate files: a chain of ten with RSA 4096 keys is about 25 KiB; a
 * bundle of public authorities about 220 KiB. */
#define TOW_PEM_FILE_BYTES_MAX ((size_t)1 << 20)

/* Memory to decode one message of a handshake. The largest (Hello, 16 unknown
 * fields, 4 KiB) takes about 5 KiB. */
#define TOW_HANDSHAKE_ARENA_BYTES_MAX ((size_t)16384)

#endif /* TOW_WIRE_TUNING_H_ */
