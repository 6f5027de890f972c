#include "device/sim/value.h"

#include <string.h>

#include "base/hash.h"
#include "device/sim/tuning.h"

static size_t shown_count(size_t count)
{
    return count < TOW_SIM_CONTENT_BYTES_MAX ? count
                                             : TOW_SIM_CONTENT_BYTES_MAX;
}

/* Word `index` of the array, little endian on every machine. */
static void show_word(uint64_t value, uint64_t index, uint8_t word[8])
{
    uint64_t number = index == 0 ? value : tow_mix64(value + index);
    for (int i = 0; i < 8; i++)
        word[i] = (uint8_t)(number >> (8 * i));
}

static uint64_t read_word(const uint8_t *bytes, size_t count)
{
    uint64_t number = 0;
    for (size_t i = 0; i < count && i < 8; i++)
        number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

uint64_t tow_sim_value_fit(uint64_t value, uint64_t bytes)
{
    return bytes >= 8 ? value : value & (((uint64_t)1 << (8 * bytes)) - 1);
}

void tow_sim_value_show(uint64_t value, void *bytes, size_t count)
{
    size_t shown = shown_count(count);
    uint8_t *at = bytes;
    uint8_t word[8];
    for (size_t i = 0; i < shown; i += 8) {
        show_word(value, i / 8, word);
        memcpy(at + i, word, shown - i < 8 ? shown - i : 8);
    }
    if (count > shown) memset(at + shown, 0, count - shown);
}

uint64_t tow_sim_value_read(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    size_t shown = shown_count(count);
    uint64_t value = read_word(at, count);
    uint8_t word[8];
    for (size_t i = 8; i < shown; i += 8) {
        show_word(value, i / 8, word);
        if (memcmp(at + i, word, shown - i < 8 ? shown - i : 8) != 0)
            return tow_hash_bytes(bytes, shown, 0);
    }
    return value;
}

uint64_t tow_sim_value_begin(const char *program)
{
    return tow_hash_bytes(program, strlen(program), 0);
}

uint64_t tow_sim_value_mix(uint64_t value, uint64_t argument)
{
    return tow_mix64(tow_mix64(value) + argument);
}

uint64_t tow_sim_value_after_collective(tow_sim_collective_kind_t kind,
                                        uint64_t combined, uint32_t rank)
{
    uint64_t value = tow_sim_value_mix(combined, (uint64_t)kind);
    bool differs = kind == TOW_SIM_REDUCE_SCATTER ||
                   kind == TOW_SIM_ALL_TO_ALL || kind == TOW_SIM_PERMUTE;
    return differs ? tow_sim_value_mix(value, (uint64_t)rank + 1) : value;
}
