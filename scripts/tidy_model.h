/* What clang-tidy cannot know, for it sees one file at a time: an error made by
 * these is never TOW_OK. Without it, it finds outputs unset on paths where the
 * caller returned. Included before each file by scripts/check.sh, but for
 * src/base/status.c, which defines them. */
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
