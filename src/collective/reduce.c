/* One loop per (type, reduction), made by macros so that each is a plain loop
 * that the compiler fiber_ops into vector instructions. */
#include "collective/reduce.h"

#include <complex.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"

typedef void (*reduce_loop_t)(void *into, const void *from, size_t count);

#define DEFINE_LOOP(name, type, expression)                      \
    static void name(void *into, const void *from, size_t count) \
    {                                                            \
        type *restrict x = into;                                 \
        const type *restrict y = from;                           \
        for (size_t i = 0; i < count; i++) {                     \
            const type a = x[i], b = y[i];                       \
            x[i] = (type)(expression);                           \
        }                                                        \
    }

/* Unsigned arithmetic wraps, and gives the same bits as signed. Narrow types are
 * widened first: a product of two uint16_t would be computed in int. */
#define DEFINE_INTEGER(suffix, type, wide)                \
    DEFINE_LOOP(sum_##suffix, type, (wide)a + (wide)b)    \
    DEFINE_LOOP(product_##suffix, type, (wide)a *(wide)b) \
    DEFINE_LOOP(min_##suffix, type, a < b ? a : b)        \
    DEFINE_LOOP(max_##suffix, type, a > b ? a : b)

/* A NaN on either side wins: then a != a, or both comparisons are false. */
#define DEFINE_FLOAT(suffix, type)                           \
    DEFINE_LOOP(sum_##suffix, type, a + b)                   \
    DEFINE_LOOP(product_##suffix, type, a *b)                \
    DEFINE_LOOP(min_##suffix, type, a < b || a != a ? a : b) \
    DEFINE_LOOP(max_##suffix, type, a > b || a != a ? a : b)

DEFINE_INTEGER(s8, int8_t, uint32_t)
DEFINE_INTEGER(s16, int16_t, uint32_t)
DEFINE_INTEGER(s32, int32_t, uint32_t)
DEFINE_INTEGER(s64, int64_t, uint64_t)
DEFINE_INTEGER(u8, uint8_t, uint32_t)
DEFINE_INTEGER(u16, uint16_t, uint32_t)
DEFINE_INTEGER(u32, uint32_t, uint32_t)
DEFINE_INTEGER(u64, uint64_t, uint64_t)
DEFINE_FLOAT(f32, float)
DEFINE_FLOAT(f64, double)
DEFINE_LOOP(or_pred, uint8_t, (a != 0) | (b != 0))
DEFINE_LOOP(and_pred, uint8_t, (a != 0) & (b != 0))
DEFINE_LOOP(sum_c64, float complex, a + b)
DEFINE_LOOP(product_c64, float complex, a *b)
DEFINE_LOOP(sum_c128, double complex, a + b)
DEFINE_LOOP(product_c128, double complex, a *b)

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float bf16_to_float(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static uint16_t float_to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* NaN: keep it one. */
        return (uint16_t)((bits >> 16) | 0x40u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

/* Subnormal halves are normal floats: scale by 2^-24. */
static float f16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity and NaN */
        return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) {
        float value = (float)magnitude * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return float_of_bits(sign | ((magnitude << 13) + 0x38000000u));
}

/* Rounds to nearest even. Adding a large number lets the floating-point unit do
 * the rounding of results that are subnormal as halves. */
static uint16_t float_to_f16(float value)
{
    uint32_t bits = bits_of_float(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00u;
    if (bits >= 0x47800000u) return sign | 0x7c00u; /* 65536 and above */
    if (bits < 0x38800000u) {                       /* below 2^-14 */
        float shifted = float_of_bits(bits) + 0.5f;
        return sign | (uint16_t)(bits_of_float(shifted) - 0x3f000000u);
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return sign | (uint16_t)((bits - 0x38000000u) >> 13);
}

#define DEFINE_HALF_LOOP(name, to_float, from_float, expression) \
    static void name(void *into, const void *from, size_t count) \
    {                                                            \
        uint16_t *restrict x = into;                             \
        const uint16_t *restrict y = from;                       \
        for (size_t i = 0; i < count; i++) {                     \
            const float a = to_float(x[i]), b = to_float(y[i]);  \
            x[i] = from_float(expression);                       \
        }                                                        \
    }

#define DEFINE_HALF(suffix, to_float, from_float)                  \
    DEFINE_HALF_LOOP(sum_##suffix, to_float, from_float, a + b)    \
    DEFINE_HALF_LOOP(product_##suffix, to_float, from_float, a *b) \
    DEFINE_HALF_LOOP(min_##suffix, to_float, from_float,           \
                     a < b || a != a ? a : b)                      \
    DEFINE_HALF_LOOP(max_##suffix, to_float, from_float,           \
                     a > b || a != a ? a : b)

DEFINE_HALF(bf16, bf16_to_float, float_to_bf16)
DEFINE_HALF(f16, f16_to_float, float_to_f16)

#define ROW(suffix)                                                \
    {                                                              \
        sum_##suffix, product_##suffix, min_##suffix, max_##suffix \
    }

/* By type, then reduction - 1. */
static const reduce_loop_t loops[][4] = {
    [TOW_TYPE_PRED] = {or_pred, and_pred, and_pred, or_pred},
    [TOW_TYPE_S8] = ROW(s8),
    [TOW_TYPE_S16] = ROW(s16),
    [TOW_TYPE_S32] = ROW(s32),
    [TOW_TYPE_S64] = ROW(s64),
    [TOW_TYPE_U8] = ROW(u8),
    [TOW_TYPE_U16] = ROW(u16),
    [TOW_TYPE_U32] = ROW(u32),
    [TOW_TYPE_U64] = ROW(u64),
    [TOW_TYPE_F16] = ROW(f16),
    [TOW_TYPE_F32] = ROW(f32),
    [TOW_TYPE_F64] = ROW(f64),
    [TOW_TYPE_BF16] = ROW(bf16),
    [TOW_TYPE_C64] = {sum_c64, product_c64, NULL, NULL},
    [TOW_TYPE_C128] = {sum_c128, product_c128, NULL, NULL},
};

static reduce_loop_t find_loop(tow_type_t type, tow_reduction_t reduction)
{
    if ((size_t)type >= TOW_COUNT_OF(loops)) return NULL;
    if (reduction < TOW_REDUCE_SUM || reduction > TOW_REDUCE_MAX) return NULL;
    return loops[type][reduction - 1];
}

bool tow_reduce_is_supported(tow_type_t type, tow_reduction_t reduction)
{
    return find_loop(type, reduction) != NULL;
}

void tow_reduce(void *into, const void *from, size_t count, tow_type_t type,
                tow_reduction_t reduction)
{
    reduce_loop_t loop = find_loop(type, reduction);
    TOW_ASSERT(loop != NULL);
    loop(into, from, count);
}
