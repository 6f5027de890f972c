/* Frames: the encoding of messages on a control connection.
 *
 *     u32 size      bytes of payload
 *     u16 type      of the message
 *     u16 flags     0; anything else is refused
 *     u32 crc       CRC32C of the eight bytes above and the payload
 *     payload
 *
 * Little endian. No I/O: these functions work on bytes in memory. */
#ifndef TOW_WIRE_FRAME_H_
#define TOW_WIRE_FRAME_H_

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

#define TOW_FRAME_HEADER_SIZE 12u

typedef struct tow_frame {
    uint32_t type;
    uint32_t size;
    const uint8_t *payload; /* inside the bytes that were parsed */
} tow_frame_t;

typedef enum tow_frame_result {
    TOW_FRAME_READY,
    TOW_FRAME_PARTIAL, /* more bytes are needed */
    TOW_FRAME_BAD,
} tow_frame_result_t;

/* Writes the header of a frame whose payload is already at
 * `frame + TOW_FRAME_HEADER_SIZE`. */
void tow_frame_seal(uint8_t *frame, uint16_t type, uint32_t size);

/* Parses the frame at the start of `bytes`. READY sets *out_frame, which takes
 * TOW_FRAME_HEADER_SIZE + size bytes. PARTIAL sets *out_needed to the size of
 * the whole frame, or of its header while that is incomplete. BAD sets
 * *out_error, which the caller owns. A size above `size_max` is BAD as soon as
 * it is known, so that nothing is buffered for it. */
tow_frame_result_t tow_frame_parse(const uint8_t *bytes, size_t available,
                                   uint32_t size_max, tow_frame_t *out_frame,
                                   size_t *out_needed, tow_status_t *out_error);

#endif /* TOW_WIRE_FRAME_H_ */
