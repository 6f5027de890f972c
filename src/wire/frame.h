/* Frames: how messages lie on a control connection.
 *
 *     u32 size      bytes of payload
 *     u16 type      what the payload is
 *     u16 flags     0; anything else is refused
 *     u32 crc       CRC32C of the eight bytes above and the payload
 *     payload
 *
 * Little endian. Sans I/O: these functions see bytes and nothing else. */
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

/* Writes the header of a frame whose payload already stands at
 * `frame + TOW_FRAME_HEADER_SIZE`. */
void tow_frame_seal(uint8_t *frame, uint16_t type, uint32_t size);

/* Looks at the start of `bytes`. READY fills *out_frame; the frame took
 * TOW_FRAME_HEADER_SIZE + size bytes. PARTIAL sets *out_needed to the bytes
 * that the whole frame takes, as far as is known. BAD sets *out_error, which
 * the caller owns. A size above `size_max` is BAD at once: nothing is ever
 * buffered for it. */
tow_frame_result_t tow_frame_parse(const uint8_t *bytes, size_t available,
                                   uint32_t size_max, tow_frame_t *out_frame,
                                   size_t *out_needed, tow_status_t *out_error);

#endif /* TOW_WIRE_FRAME_H_ */
