/* Element types, with the names of StableHLO. */
#ifndef TOWPATH_TYPES_H_
#define TOWPATH_TYPES_H_

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of PJRT_Buffer_Type, so that drivers convert by cast. */
typedef enum tow_type {
    TOW_TYPE_INVALID = 0,
    TOW_TYPE_PRED = 1,
    TOW_TYPE_S8 = 2,
    TOW_TYPE_S16 = 3,
    TOW_TYPE_S32 = 4,
    TOW_TYPE_S64 = 5,
    TOW_TYPE_U8 = 6,
    TOW_TYPE_U16 = 7,
    TOW_TYPE_U32 = 8,
    TOW_TYPE_U64 = 9,
    TOW_TYPE_F16 = 10,
    TOW_TYPE_F32 = 11,
    TOW_TYPE_F64 = 12,
    TOW_TYPE_BF16 = 13,
    TOW_TYPE_C64 = 14,
    TOW_TYPE_C128 = 15,
    TOW_TYPE_F8E5M2 = 16,
    TOW_TYPE_F8E4M3FN = 17,
    TOW_TYPE_F8E4M3B11FNUZ = 18,
    TOW_TYPE_F8E5M2FNUZ = 19,
    TOW_TYPE_F8E4M3FNUZ = 20,
    TOW_TYPE_S4 = 21,
    TOW_TYPE_U4 = 22,
    TOW_TYPE_TOKEN = 23,
    TOW_TYPE_S2 = 24,
    TOW_TYPE_U2 = 25,
    TOW_TYPE_F8E4M3 = 26,
    TOW_TYPE_F8E3M4 = 27,
    TOW_TYPE_F8E8M0FNU = 28,
    TOW_TYPE_F4E2M1FN = 29,
    /* Other numbers are passed through. */
} tow_type_t;

/* Element-wise reductions over arrays. Integers wrap; MIN and MAX propagate
 * NaN; SUM of predicates is `or`, PRODUCT is `and`. */
typedef enum tow_reduction {
    TOW_REDUCE_SUM = 1,
    TOW_REDUCE_PRODUCT,
    TOW_REDUCE_MIN,
    TOW_REDUCE_MAX,
} tow_reduction_t;

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_TYPES_H_ */
