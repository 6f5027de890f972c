/* Tunable numbers of this module. Limits that both ends must agree on are in
 * the headers and in docs/wire.md instead. */
#ifndef TOW_WIRE_TUNING_H_
#define TOW_WIRE_TUNING_H_

#include <stddef.h>

/* Unread cipher bytes in one direction of a TLS connection. The caller reads
 * after every feed, so normally at most one record (16 KiB) and one read of a
 * socket are unread; this bound limits the memory that a bug could cost. */
#define TOW_TLS_FEED_BYTES_MAX ((size_t)4 << 20)

/* The first size of a buffer of cipher bytes, and up to which size it is kept
 * while it is empty: one record. */
#define TOW_TLS_BUFFER_BYTES_MIN  ((size_t)4 << 10)
#define TOW_TLS_BUFFER_BYTES_KEPT ((size_t)20 << 10)

/* One read of the socket of a connection that carries much data: several
 * records, but few enough to stay in the processor's cache until they are
 * decrypted. */
#define TOW_TLS_BULK_READ_BYTES ((size_t)128 << 10)

/* Validity of a self-signed certificate. Nothing renews it, so a short one
 * would stop a cluster when it expires. */
#define TOW_CERTIFICATE_DAYS 3650

/* Certificates are valid from this long before their creation: the clocks of
 * hosts differ. */
#define TOW_CERTIFICATE_BACKDATED_SECONDS 86400

/* Certificate files: a chain of ten with RSA 4096 keys is about 25 KiB; a
 * bundle of public authorities about 220 KiB. */
#define TOW_PEM_FILE_BYTES_MAX ((size_t)1 << 20)

/* Memory to decode one message of a handshake. The largest (Hello, 16 unknown
 * fields, 4 KiB) takes about 5 KiB. */
#define TOW_HANDSHAKE_ARENA_BYTES_MAX ((size_t)16384)

#endif /* TOW_WIRE_TUNING_H_ */
