/* The bytes on lanes: addresses and the headers of messages, which UCX carries
 * as active messages, and a trunk as frames. Pure functions without UCX,
 * allocation or a clock.
 *
 * A lane is a stream in one direction. The side that opens it draws a random
 * stream number and sends HELLO with its own lane address, to which answers are
 * sent. Every later message carries that number. The target rejects a number
 * for which it has no HELLO, or whose lane was closed by force: this fence
 * keeps messages that a dead peer left in a queue out of our memory.
 *
 * Messages of one stream arrive in order, so a write is reassembled by
 * counting. All numbers are little-endian. */
#ifndef TOW_ENV_NET_DATA_WIRE_H_
#define TOW_ENV_NET_DATA_WIRE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "env/env.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "headers are written as they lie in memory");

/* -- Addresses ------------------------------------------------------------ */

#define TOW_DATA_MAGIC            0x4c574f54u /* "TOWL" */
#define TOW_DATA_VERSION          4u
#define TOW_DATA_ADDRESS_SIZE_MAX 2048u

/* Precedes the name, the listening address and the UCX address. */
typedef struct tow_data_address_header {
    uint32_t magic;
    uint16_t version;
    uint16_t ucx_size;
    uint64_t node;    /* random; identifies this data plane */
    uint64_t proof;   /* random; is in ... */
    int32_t segment;  /* ... this shared memory segment; negative: none */
    uint16_t listens; /* size of the address on which it can be dialled */
    uint8_t name_size;
    uint8_t flags;
    uint32_t crc; /* CRC32C of everything else, with this field 0 */
    uint32_t zero;
} tow_data_address_header_t;

enum {
    /* UCX may carry its lanes between hosts, too. */
    TOW_DATA_TRUSTS_NETWORK = 1,
    TOW_DATA_ADDRESS_FLAGS = TOW_DATA_TRUSTS_NETWORK,
};

/* Pointers are lent: into the parsed bytes. */
typedef struct tow_data_address {
    uint64_t node;
    uint64_t proof;
    int32_t segment;
    bool trusts_network;
    char name[TOW_PEER_NAME_MAX + 1]; /* of the process, for error messages */
    const char *listens;              /* not terminated */
    size_t listens_size;              /* 0: it cannot be dialled */
    const void *ucx;
    size_t ucx_size; /* 0: it does not use UCX */
} tow_data_address_t;

/* The size of the packed address. */
size_t tow_data_address_size(const tow_data_address_t *address);
/* `bytes` has room for that. Returns the size. */
size_t tow_data_address_pack(const tow_data_address_t *address, void *bytes);
/* INVALID_ARGUMENT with the reason. */
tow_status_t tow_data_address_parse(const void *bytes, size_t size,
                                    tow_data_address_t *out_address)
    TOW_MUST_USE;

/* -- Messages ------------------------------------------------------------- */

/* Ids of UCX active messages and of messages on trunks. */
typedef enum tow_data_id {
    TOW_DATA_DATAGRAM,
    TOW_DATA_FRAGMENT,
    TOW_DATA_CONTROL,
    TOW_DATA_PULL,
    TOW_DATA_ID_COUNT,
    TOW_DATA_GREETING = TOW_DATA_ID_COUNT, /* on trunks only, as the next */
    TOW_DATA_SUBFLOWS,
} tow_data_id_t;

/* Precedes the header of each message on a trunk. */
typedef struct tow_data_frame {
    uint8_t id;
    uint8_t zero;
    uint16_t header_size;
    uint32_t payload_size;
} tow_data_frame_t;

/* What a connection is for, as the side that dialled it says. */
typedef enum tow_data_connection_kind {
    TOW_DATA_IS_TRUNK,
    TOW_DATA_IS_SUBFLOW,         /* on which the dialler sends */
    TOW_DATA_IS_REVERSE_SUBFLOW, /* on which the listener sends */
    TOW_DATA_CONNECTION_KIND_END,
} tow_data_connection_kind_t;

/* The first message on a connection, from each side: who it is, and whom it
 * expects. The listener's greeting on a trunk has a random number, by which the
 * dialler then names the trunk of a subflow. */
typedef struct tow_data_greeting {
    uint32_t magic;
    uint16_t version;
    uint8_t kind;
    uint8_t subflow_count; /* that the sender accepts, in each direction */
    uint64_t node;
    uint64_t expected; /* 0: anyone */
    uint64_t trunk;    /* 0: none yet */
} tow_data_greeting_t;

/* From the listener of a trunk to its dialler: dial so many subflows on which I
 * send. */
typedef struct tow_data_subflows {
    uint32_t count;
    uint32_t zero;
} tow_data_subflows_t;

/* 16 bytes: datagrams of up to 69 bytes take UCX's short-message path. */
typedef struct tow_data_datagram {
    uint64_t stream;
    uint64_t channel;
} tow_data_datagram_t;

enum {
    TOW_DATA_CHECKED = 1, /* the target compares checksums */
    TOW_DATA_LAST = 2,    /* the last fragment; `crc` covers the write */
    TOW_DATA_IN_RING = 4, /* the payload is a reference to the bytes */
    TOW_DATA_FRAGMENT_FLAGS =
        TOW_DATA_CHECKED | TOW_DATA_LAST | TOW_DATA_IN_RING,
};

/* Where the bytes of a fragment are; see ring.h. */
typedef struct tow_data_ring_ref {
    int32_t ring;
    uint32_t index; /* increments */
    uint32_t size;
} tow_data_ring_ref_t;

/* A piece of a write. Only `at`, `crc` and LAST differ between its pieces. On
 * a subflow, `crc` covers this piece alone, and pieces come in any order. */
typedef struct tow_data_fragment {
    uint64_t stream;
    uint64_t write; /* increments within the stream */
    uint64_t region;
    uint64_t secret;
    uint64_t place; /* offset in the region */
    uint64_t total; /* size of the write */
    uint64_t at;    /* offset of this piece in the write */
    uint64_t tag;
    uint32_t crc;
    uint32_t flags;
} tow_data_fragment_t;

/* A whole write that the target reads out of the writer's memory; see
 * cross_read.h. */
typedef struct tow_data_pull {
    uint64_t stream;
    uint64_t write; /* also the guard value while the bytes are valid; not 0 */
    uint64_t region;
    uint64_t secret;
    uint64_t place;
    uint64_t total;
    uint64_t tag;
    uint64_t bytes; /* addresses in the writer's process: the bytes ... */
    uint64_t guard_address;
    /* The mappable memory block that contains the bytes, see base/block.h. 0:
     * none. */
    uint64_t block;
    uint64_t block_size;
    uint64_t block_offset; /* of the bytes */
    uint32_t block_fd;     /* in the writer's process */
    uint32_t flags;
} tow_data_pull_t;

enum {
    TOW_DATA_MAY_SHARE =
        1, /* the target may share the bytes instead of copying */
    TOW_DATA_PULL_FLAGS = TOW_DATA_MAY_SHARE,
};

/* Tells the target of a lane which process is at the other end: the kernel
 * attaches the process id. Sent to the target's cross-read endpoint, not
 * through UCX. */
#define TOW_DATA_OFFER_MAGIC 0x52574f54u /* "TOWR" */
typedef struct tow_data_offer {
    uint32_t magic;
    uint32_t zero;
    uint64_t stream;
    uint64_t guard_address; /* an address; at it is ... */
    uint64_t value;         /* ... this random number */
} tow_data_offer_t;

typedef enum tow_data_control_kind {
    TOW_DATA_HELLO = 1, /* opens a stream; payload: our lane address */
    /* Answers can be sent; `write` is 1 if pulls are accepted. */
    TOW_DATA_HELLO_BACK,
    TOW_DATA_BYE,      /* closes the stream */
    TOW_DATA_BYE_BACK, /* everything before your BYE has arrived */
    TOW_DATA_RESET,    /* your stream is not open here */
    TOW_DATA_ANSWER,   /* the result of a write: `write`, `code` */
    TOW_DATA_SHARED,   /* the target shares the write; the ANSWER follows */
    /* On trunks only: the dialler carries no lane on it and opens no more; the
     * listener ends it, unless it has a lane on it itself. */
    TOW_DATA_IDLE,
    TOW_DATA_KIND_END,
} tow_data_control_kind_t;

typedef struct tow_data_control {
    uint64_t stream; /* the opener's number, in both directions */
    uint64_t write;
    uint16_t version;
    uint8_t kind;
    uint8_t code; /* tow_code_t */
    uint32_t zero;
} tow_data_control_t;

/* The largest header of a message on a trunk. */
#define TOW_DATA_TRUNK_HEADER_SIZE_MAX sizeof(tow_data_fragment_t)

/* NULL, or what is wrong. A frame that passes has a header of the size of its
 * kind, and a payload within its bounds. */
const char *tow_data_check_frame(const tow_data_frame_t *frame) TOW_MUST_USE;
const char *tow_data_parse_greeting(const void *header, size_t header_size,
                                    tow_data_greeting_t *out) TOW_MUST_USE;
const char *tow_data_parse_subflows(const void *header, size_t header_size,
                                    tow_data_subflows_t *out) TOW_MUST_USE;

/* Each returns NULL and fills `out`, or returns what is wrong with the message.
 * A parsed message is consistent in itself; whether its region exists is
 * checked elsewhere. */
const char *tow_data_parse_datagram(const void *header, size_t header_size,
                                    size_t payload_size,
                                    tow_data_datagram_t *out) TOW_MUST_USE;
/* Also fills `out_ref`: its size is that of the fragment's bytes, wherever they
 * are; the other fields are 0 unless the bytes are in a ring. */
const char *tow_data_parse_fragment(const void *header, size_t header_size,
                                    const void *payload, size_t payload_size,
                                    tow_data_fragment_t *out,
                                    tow_data_ring_ref_t *out_ref) TOW_MUST_USE;
const char *tow_data_parse_pull(const void *header, size_t header_size,
                                size_t payload_size, tow_data_pull_t *out)
    TOW_MUST_USE;
const char *tow_data_parse_offer(const void *bytes, size_t size,
                                 tow_data_offer_t *out) TOW_MUST_USE;
const char *tow_data_parse_control(const void *header, size_t header_size,
                                   size_t payload_size, tow_data_control_t *out)
    TOW_MUST_USE;

/* -- Reassembly of writes ------------------------------------------------- */

typedef struct tow_data_partial {
    tow_data_fragment_t first;
    uint64_t received;
    uint32_t crc; /* of the bytes received */
} tow_data_partial_t;

/* The target of a write. */
typedef struct tow_data_extent {
    uint64_t region;
    uint64_t secret;
    uint64_t place;
    uint64_t total;
} tow_data_extent_t;

static inline tow_data_extent_t tow_data_extent_of(
    const tow_data_fragment_t *fragment)
{
    return (tow_data_extent_t){fragment->region, fragment->secret,
                               fragment->place, fragment->total};
}

/* Whether the write fits into a region of `region_size` bytes. */
static inline bool tow_data_fits(const tow_data_extent_t *span,
                                 uint64_t region_size)
{
    return span->place <= region_size &&
           span->total <= region_size - span->place;
}

/* Whether both are pieces of the same write. */
bool tow_data_fragment_is_of(const tow_data_fragment_t *first,
                             const tow_data_fragment_t *next);
/* Whether `next` is the piece that follows those received. */
bool tow_data_partial_continues(const tow_data_partial_t *partial,
                                const tow_data_fragment_t *next);

#endif /* TOW_ENV_NET_DATA_WIRE_H_ */
