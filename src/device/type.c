#include <string.h>

#include "base/macros.h"
#include "device/device.h"

typedef struct type_row {
    const char *name;
    uint32_t bits;
} type_row_t;

/* By number. The names are those of HLO's text. */
static const type_row_t rows[] = {
    [TOW_TYPE_PRED] = {"pred", 8},
    [TOW_TYPE_S8] = {"s8", 8},
    [TOW_TYPE_S16] = {"s16", 16},
    [TOW_TYPE_S32] = {"s32", 32},
    [TOW_TYPE_S64] = {"s64", 64},
    [TOW_TYPE_U8] = {"u8", 8},
    [TOW_TYPE_U16] = {"u16", 16},
    [TOW_TYPE_U32] = {"u32", 32},
    [TOW_TYPE_U64] = {"u64", 64},
    [TOW_TYPE_F16] = {"f16", 16},
    [TOW_TYPE_F32] = {"f32", 32},
    [TOW_TYPE_F64] = {"f64", 64},
    [TOW_TYPE_BF16] = {"bf16", 16},
    [TOW_TYPE_C64] = {"c64", 64},
    [TOW_TYPE_C128] = {"c128", 128},
    [TOW_TYPE_F8E5M2] = {"f8e5m2", 8},
    [TOW_TYPE_F8E4M3FN] = {"f8e4m3fn", 8},
    [TOW_TYPE_F8E4M3B11FNUZ] = {"f8e4m3b11fnuz", 8},
    [TOW_TYPE_F8E5M2FNUZ] = {"f8e5m2fnuz", 8},
    [TOW_TYPE_F8E4M3FNUZ] = {"f8e4m3fnuz", 8},
    [TOW_TYPE_S4] = {"s4", 4},
    [TOW_TYPE_U4] = {"u4", 4},
    [TOW_TYPE_TOKEN] = {"token", 0},
    [TOW_TYPE_S2] = {"s2", 2},
    [TOW_TYPE_U2] = {"u2", 2},
    [TOW_TYPE_F8E4M3] = {"f8e4m3", 8},
    [TOW_TYPE_F8E3M4] = {"f8e3m4", 8},
    [TOW_TYPE_F8E8M0FNU] = {"f8e8m0fnu", 8},
    [TOW_TYPE_F4E2M1FN] = {"f4e2m1fn", 4},
};

static const type_row_t *row_of(tow_type_t type)
{
    const size_t index = (size_t)type; /* A negative number becomes large. */
    if (index >= TOW_COUNT_OF(rows) || rows[index].name == NULL) return NULL;
    return &rows[index];
}

uint32_t tow_type_bits(tow_type_t type)
{
    const type_row_t *row = row_of(type);
    return row != NULL ? row->bits : 0;
}

const char *tow_type_name(tow_type_t type)
{
    const type_row_t *row = row_of(type);
    return row != NULL ? row->name : "?";
}

tow_type_t tow_type_parse(const char *name)
{
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++)
        if (rows[i].name != NULL && strcmp(rows[i].name, name) == 0)
            return (tow_type_t)i;
    return TOW_TYPE_INVALID;
}

/* -- Reductions ---------------------------------------------------------------- */

static const char *const reduction_names[] = {
    [TOW_REDUCE_SUM] = "sum",
    [TOW_REDUCE_PRODUCT] = "product",
    [TOW_REDUCE_MIN] = "min",
    [TOW_REDUCE_MAX] = "max",
};

static bool is_reduction(tow_reduction_t reduction)
{
    return reduction >= TOW_REDUCE_SUM && reduction <= TOW_REDUCE_MAX;
}

bool tow_type_is_reducible(tow_type_t type, tow_reduction_t reduction)
{
    if (!is_reduction(reduction)) return false;
    if (type == TOW_TYPE_C64 || type == TOW_TYPE_C128)
        return reduction == TOW_REDUCE_SUM || reduction == TOW_REDUCE_PRODUCT;
    return type >= TOW_TYPE_PRED && type <= TOW_TYPE_BF16;
}

const char *tow_reduction_name(tow_reduction_t reduction)
{
    return is_reduction(reduction) ? reduction_names[reduction] : "?";
}

tow_reduction_t tow_reduction_parse(const char *name)
{
    for (size_t i = TOW_REDUCE_SUM; i <= TOW_REDUCE_MAX; i++)
        if (strcmp(reduction_names[i], name) == 0) return (tow_reduction_t)i;
    return (tow_reduction_t)0;
}
