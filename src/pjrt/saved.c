/*     u8  magic[8]
 *     u32 version
 *     u32 crc            CRC32C of all that follows
 *     u64 program_size
 *     u64 options_size
 *     program, options
 *
 * Little endian. */
#include "pjrt/saved.h"

#include <endian.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

#define SAVED_VERSION 1u

static const char magic[8] = "TOWSAVED";

typedef struct header {
    char magic[sizeof(magic)];
    uint32_t version;
    uint32_t crc;
    uint64_t program_size;
    uint64_t options_size;
} header_t;
_Static_assert(sizeof(header_t) == 32, "as it is written");
#define UNCHECKED_BYTES offsetof(header_t, program_size)

static uint32_t crc_of(const void *bytes, size_t size)
{
    return tow_crc32c(0, (const uint8_t *)bytes + UNCHECKED_BYTES,
                      size - UNCHECKED_BYTES);
}

tow_status_t tow_saved_pack(const tow_saved_t *saved, void **out_bytes,
                            size_t *out_size)
{
    const size_t size =
        sizeof(header_t) + saved->program.size + saved->options.size;
    uint8_t *bytes = tow_malloc(size);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    header_t header = {.version = htole32(SAVED_VERSION),
                       .program_size = htole64(saved->program.size),
                       .options_size = htole64(saved->options.size)};
    memcpy(header.magic, magic, sizeof(magic));
    memcpy(bytes, &header, sizeof(header));
    uint8_t *end = bytes + sizeof(header);
    if (saved->program.size > 0)
        memcpy(end, saved->program.data, saved->program.size);
    if (saved->options.size > 0)
        memcpy(end + saved->program.size, saved->options.data,
               saved->options.size);
    const uint32_t crc = htole32(crc_of(bytes, size));
    memcpy(bytes + offsetof(header_t, crc), &crc, sizeof(crc));
    *out_bytes = bytes;
    *out_size = size;
    return TOW_OK;
}

static tow_status_t check_header(tow_bytes_t bytes, header_t *out_header)
{
    if (bytes.size < sizeof(*out_header) ||
        memcmp(bytes.data, magic, sizeof(magic)) != 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "these %zu bytes are no executable that towpath has "
                         "saved; was it another platform?",
                         bytes.size);
    memcpy(out_header, bytes.data, sizeof(*out_header));
    const uint32_t version = le32toh(out_header->version);
    if (version != SAVED_VERSION)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "an executable that was saved in format %u, and this "
                         "towpath reads %u: compile it again",
                         version, SAVED_VERSION);
    return TOW_OK;
}

tow_status_t tow_saved_unpack(tow_bytes_t bytes, tow_saved_t *out_saved)
{
    header_t header;
    TOW_RETURN_IF_ERROR(check_header(bytes, &header));
    const uint64_t size = bytes.size - sizeof(header);
    const uint64_t program_size = le64toh(header.program_size);
    const uint64_t options_size = le64toh(header.options_size);
    if (program_size > size || options_size != size - program_size)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a saved executable of %zu bytes, and not %llu + %llu "
                         "after its header: it is not complete",
                         bytes.size, (unsigned long long)program_size,
                         (unsigned long long)options_size);
    if (le32toh(header.crc) != crc_of(bytes.data, bytes.size))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a saved executable of %zu bytes is damaged: its "
                         "checksum is wrong",
                         bytes.size);
    const uint8_t *program = (const uint8_t *)bytes.data + sizeof(header);
    out_saved->program = (tow_bytes_t){program, program_size};
    out_saved->options = (tow_bytes_t){program + program_size, options_size};
    return TOW_OK;
}
