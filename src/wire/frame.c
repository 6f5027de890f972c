#include "wire/frame.h"

#include "base/assert.h"
#include "base/hash.h"
#include "wire/bytes_impl.h"

enum {
    SIZE_AT = 0,
    TYPE_AT = 4,
    FLAGS_AT = 6,
    CRC_AT = 8,
};

static inline uint32_t checksum(const uint8_t *frame, uint32_t size)
{
    uint32_t crc = tow_crc32c(0, frame, CRC_AT);
    return tow_crc32c(crc, frame + TOW_FRAME_HEADER_SIZE, size);
}

void tow_frame_seal(uint8_t *frame, uint16_t type, uint32_t size)
{
    tow_store_u32(frame + SIZE_AT, size);
    tow_store_u16(frame + TYPE_AT, type);
    tow_store_u16(frame + FLAGS_AT, 0);
    tow_store_u32(frame + CRC_AT, checksum(frame, size));
}

static TOW_COLD tow_frame_result_t refuse_size(uint32_t size, uint32_t size_max,
                                               tow_status_t *out_error)
{
    *out_error = TOW_ERROR(TOW_INVALID_ARGUMENT,
                           "frame of %u bytes exceeds the limit of %u bytes",
                           size, size_max);
    return TOW_FRAME_BAD;
}

static TOW_COLD tow_frame_result_t refuse_flags(uint32_t type, uint32_t flags,
                                                tow_status_t *out_error)
{
    *out_error =
        TOW_ERROR(TOW_INVALID_ARGUMENT,
                  "frame of type %u has unknown flags 0x%04x", type, flags);
    return TOW_FRAME_BAD;
}

static TOW_COLD tow_frame_result_t refuse_checksum(const uint8_t *frame,
                                                   uint32_t size,
                                                   tow_status_t *out_error)
{
    *out_error = TOW_ERROR(TOW_DATA_LOSS,
                           "frame of type %u and %u bytes is corrupt: checksum "
                           "0x%08x in its header, 0x%08x computed",
                           tow_load_u16(frame + TYPE_AT), size,
                           tow_load_u32(frame + CRC_AT), checksum(frame, size));
    return TOW_FRAME_BAD;
}

/* An incomplete header: report errors as early as possible. */
static tow_frame_result_t parse_piece(const uint8_t *bytes, size_t available,
                                      uint32_t size_max, size_t *out_needed,
                                      tow_status_t *out_error)
{
    *out_needed = TOW_FRAME_HEADER_SIZE;
    if (available < TYPE_AT) return TOW_FRAME_PARTIAL;
    uint32_t size = tow_load_u32(bytes + SIZE_AT);
    if (size > size_max) return refuse_size(size, size_max, out_error);
    *out_needed += size;
    return TOW_FRAME_PARTIAL;
}

tow_frame_result_t tow_frame_parse(const uint8_t *bytes, size_t available,
                                   uint32_t size_max, tow_frame_t *out_frame,
                                   size_t *out_needed, tow_status_t *out_error)
{
    if (TOW_UNLIKELY(available < TOW_FRAME_HEADER_SIZE))
        return parse_piece(bytes, available, size_max, out_needed, out_error);
    uint32_t size = tow_load_u32(bytes + SIZE_AT);
    uint32_t type = tow_load_u16(bytes + TYPE_AT);
    uint32_t flags = tow_load_u16(bytes + FLAGS_AT);
    if (TOW_UNLIKELY(size > size_max))
        return refuse_size(size, size_max, out_error);
    if (TOW_UNLIKELY(flags != 0)) return refuse_flags(type, flags, out_error);
    if (available - TOW_FRAME_HEADER_SIZE < size) {
        *out_needed = (size_t)TOW_FRAME_HEADER_SIZE + size;
        return TOW_FRAME_PARTIAL;
    }
    if (TOW_UNLIKELY(checksum(bytes, size) != tow_load_u32(bytes + CRC_AT)))
        return refuse_checksum(bytes, size, out_error);
    *out_frame = (tow_frame_t){
        .type = type,
        .size = size,
        .payload = bytes + TOW_FRAME_HEADER_SIZE,
    };
    return TOW_FRAME_READY;
}
