/* One call of a handler: XLA's arguments, checked, and helpers for routines.
 *
 * Programs come from users, and a custom call can be written by hand with any
 * shapes. So each routine describes its buffers, and nothing is accessed before
 * all of them have been checked:
 *
 *     "Tmn > Tmn=0 Ik I"        (getrf)
 *
 * Arguments stand left of '>', results right. The first letter is the type: T
 * that of the first argument (f32, f64, c64 or c128), R its real type, C its
 * complex type, I int32. The next are the dimensions after those of the batch,
 * which all buffers share. A letter means one number throughout; k is the
 * smaller of m and n, h is n - 1. `=0` says that the result begins as a copy of
 * argument 0 (often it is the same memory); all other results begin as zeroes,
 * since what a routine leaves out, or does not get to, may hold another
 * tenant's bytes. */
#ifndef TOW_DEVICE_XLA_CPU_LAPACK_CALL_IMPL_H_
#define TOW_DEVICE_XLA_CPU_LAPACK_CALL_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

/* schur of real matrices has seven. */
#define TOW_LAPACK_BUFFERS_MAX 9

typedef enum {
    TOW_LAPACK_S, /* float32 */
    TOW_LAPACK_D, /* float64 */
    TOW_LAPACK_C, /* complex64 */
    TOW_LAPACK_Z, /* complex128 */
} tow_lapack_element_t;

typedef struct tow_lapack_call {
    const XLA_FFI_CallFrame *frame; /* owned by XLA */
    tow_lapack_element_t element;
    bool is_complex;
    size_t element_size;
    size_t real_size;
    size_t matrix_count; /* of the batch */
    int32_t dims[26];    /* by letter; -1: not in this routine */
    size_t buffer_count;
    char *buffers[TOW_LAPACK_BUFFERS_MAX];  /* arguments, then results */
    size_t strides[TOW_LAPACK_BUFFERS_MAX]; /* bytes from one matrix to the
                                                    next */
    size_t argument_count;
    void (*routine)(void); /* of the library */
    XLA_FFI_Error_Code code;
    char problem[512];
} tow_lapack_call_t;

/* A routine of LAPACK, which has a name for each of the four types; without a
 * name the routine is our own, because LAPACK has none. */
typedef struct tow_lapack_routine {
    const char
        *names[2]; /* of real and of complex matrices: "syevd", "heevd" */
    const char *buffers[2]; /* the same way */
    /* Computes all matrices of the batch; false when call->problem is set. */
    bool (*run)(tow_lapack_call_t *call);
} tow_lapack_routine_t;

/* The body of a handler: checks, finds the routine, runs it. NULL on success.
 */
XLA_FFI_Error *tow_lapack_call(XLA_FFI_CallFrame *frame,
                               const tow_lapack_routine_t *routine);

/* Sets the problem and returns false. */
bool tow_lapack_fail(tow_lapack_call_t *call, XLA_FFI_Error_Code code,
                     const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A dimension by its letter. */
static inline int32_t tow_lapack_dim(const tow_lapack_call_t *call, char letter)
{
    return call->dims[letter - 'a'];
}

/* The leading dimension of a matrix with so many rows. */
static inline int32_t tow_lapack_leading(int32_t rows)
{
    return rows > 1 ? rows : 1;
}

/* Result number `result` of matrix `index`, and the same for arguments. */
static inline void *tow_lapack_result(const tow_lapack_call_t *call,
                                      size_t result, size_t index)
{
    size_t at = call->argument_count + result;
    return call->buffers[at] + index * call->strides[at];
}

static inline void *tow_lapack_argument(const tow_lapack_call_t *call,
                                        size_t argument, size_t index)
{
    return call->buffers[argument] + index * call->strides[argument];
}

/* The attribute, a letter that must be one of `allowed`. */
bool tow_lapack_letter(tow_lapack_call_t *call, const char *name,
                       const char *allowed, char *out_letter);
bool tow_lapack_flag(tow_lapack_call_t *call, const char *name, bool *out_flag);
bool tow_lapack_number(tow_lapack_call_t *call, const char *name,
                       int32_t *out_number);

/* Another routine of the library, without its type's letter; NULL and the
 * problem set if it is not there. */
void (*tow_lapack_find(tow_lapack_call_t *call, const char *name))(void);

/* Working memory for `count` elements of `size`. NULL, with the problem set, if
 * memory is exhausted. Freed with free. */
void *tow_lapack_scratch(tow_lapack_call_t *call, size_t count, size_t size);

/* The workspace, in elements (or reals), that a routine has reported. False if
 * it exceeds 32 bits. */
bool tow_lapack_wanted(tow_lapack_call_t *call, const void *answer,
                       int32_t *out_count);

/* No element is infinite or NaN: LAPACK's iterations may not terminate on
 * these. */
bool tow_lapack_is_finite(const tow_lapack_call_t *call, const void *elements,
                          size_t count);

#endif /* TOW_DEVICE_XLA_CPU_LAPACK_CALL_IMPL_H_ */
