/* Tells clang-tidy, which sees one file at a time, that an error made by these
 * functions is never TOW_OK. Without this it reports unset outputs on paths where
 * the caller has returned. scripts/check.sh includes it before each file except
 * src/base/status.c, which defines the functions. */
#include "base/status.h"

#define TOW_MODEL_NOT_OK(status)                       \
    ({                                                 \
        tow_status_t error_ = (status);                \
        if (error_ == TOW_OK) __builtin_unreachable(); \
        error_;                                        \
    })
#define tow_status_make(...) TOW_MODEL_NOT_OK(tow_status_make(__VA_ARGS__))
#define tow_status_bare(...) TOW_MODEL_NOT_OK(tow_status_bare(__VA_ARGS__))
#define tow_status_from_errno(...) \
    TOW_MODEL_NOT_OK(tow_status_from_errno(__VA_ARGS__))
