/* Ids that cross machines are one-field structs, so that the compiler refuses
 * to mix them up. Zero is no id. */
#ifndef TOW_BASE_ID_H_
#define TOW_BASE_ID_H_

#include <stdbool.h>
#include <stdint.h>

#define TOW_ID_TYPE(name)                                   \
    typedef struct name {                                   \
        uint64_t value;                                     \
    } name##_t;                                             \
    static inline bool name##_is_none(name##_t id)          \
    {                                                       \
        return id.value == 0;                               \
    }                                                       \
    static inline bool name##_equal(name##_t a, name##_t b) \
    {                                                       \
        return a.value == b.value;                          \
    }

#endif /* TOW_BASE_ID_H_ */
