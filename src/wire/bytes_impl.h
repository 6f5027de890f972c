/* Numbers on the wire: little endian, at any alignment. */
#ifndef TOW_WIRE_BYTES_IMPL_H_
#define TOW_WIRE_BYTES_IMPL_H_

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void tow_store_u16(uint8_t *bytes, uint16_t value)
{
    value = htole16(value);
    memcpy(bytes, &value, sizeof(value));
}

static inline void tow_store_u32(uint8_t *bytes, uint32_t value)
{
    value = htole32(value);
    memcpy(bytes, &value, sizeof(value));
}

static inline void tow_store_u64(uint8_t *bytes, uint64_t value)
{
    value = htole64(value);
    memcpy(bytes, &value, sizeof(value));
}

static inline uint16_t tow_load_u16(const uint8_t *bytes)
{
    uint16_t value;
    memcpy(&value, bytes, sizeof(value));
    return le16toh(value);
}

static inline uint32_t tow_load_u32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof(value));
    return le32toh(value);
}

#endif /* TOW_WIRE_BYTES_IMPL_H_ */
