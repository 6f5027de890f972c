#include "device/xla_cpu/lapack/call_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/xla_cpu/ffi.h"
#include "device/xla_cpu/lapack/library_impl.h"

/* --- Errors --------------------------------------------------------------- */

bool tow_lapack_fail(tow_lapack_call_t *call, XLA_FFI_Error_Code code,
                     const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(call->problem, sizeof(call->problem), format, args);
    va_end(args);
    call->code = code;
    return false;
}

/* The program is wrong, not the values. */
#define REFUSE(call, ...) \
    tow_lapack_fail((call), XLA_FFI_Error_Code_INVALID_ARGUMENT, __VA_ARGS__)

/* --- Types ---------------------------------------------------------------- */

static const struct {
    XLA_FFI_DataType type, real, complex;
    size_t size, real_size;
    char letter;
} ELEMENTS[] = {
    [TOW_LAPACK_S] = {XLA_FFI_DataType_F32, XLA_FFI_DataType_F32,
                      XLA_FFI_DataType_C64, 4, 4, 's'},
    [TOW_LAPACK_D] = {XLA_FFI_DataType_F64, XLA_FFI_DataType_F64,
                      XLA_FFI_DataType_C128, 8, 8, 'd'},
    [TOW_LAPACK_C] = {XLA_FFI_DataType_C64, XLA_FFI_DataType_F32,
                      XLA_FFI_DataType_C64, 8, 4, 'c'},
    [TOW_LAPACK_Z] = {XLA_FFI_DataType_C128, XLA_FFI_DataType_F64,
                      XLA_FFI_DataType_C128, 16, 8, 'z'},
};

static bool take_element(tow_lapack_call_t *call)
{
    const XLA_FFI_CallFrame *frame = call->frame;
    if (frame->args.size < 1) return REFUSE(call, "no arguments");
    const XLA_FFI_Buffer *first = frame->args.args[0];
    for (size_t i = 0; i < sizeof(ELEMENTS) / sizeof(*ELEMENTS); i++) {
        if (first->dtype != ELEMENTS[i].type) continue;
        call->element = (tow_lapack_element_t)i;
        call->is_complex = i >= TOW_LAPACK_C;
        call->element_size = ELEMENTS[i].size;
        call->real_size = ELEMENTS[i].real_size;
        return true;
    }
    return REFUSE(call, "elements of type %d; f32, f64, c64 or c128",
                  (int)first->dtype);
}

static XLA_FFI_DataType type_of(const tow_lapack_call_t *call, char kind)
{
    switch (kind) {
    case 'R': return ELEMENTS[call->element].real;
    case 'C': return ELEMENTS[call->element].complex;
    case 'I': return XLA_FFI_DataType_S32;
    default: return ELEMENTS[call->element].type;
    }
}

static size_t size_of(const tow_lapack_call_t *call, char kind)
{
    switch (kind) {
    case 'R': return call->real_size;
    case 'C': return 2 * call->real_size;
    case 'I': return sizeof(int32_t);
    default: return call->element_size;
    }
}

/* --- Shapes --------------------------------------------------------------- */

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The dimension of the letter, or -1 if it is not known yet. */
static int32_t expected_dim(const tow_lapack_call_t *call, char letter)
{
    int32_t n = tow_lapack_dim(call, 'n');
    if (letter == 'k') return smaller(tow_lapack_dim(call, 'm'), n);
    if (letter == 'h') return n > 0 ? n - 1 : 0;
    return tow_lapack_dim(call, letter);
}

/* The dimensions after the batch's, by the letters of the description. */
static bool take_dims(tow_lapack_call_t *call, const char *letters,
                      size_t letter_count, const int64_t *dims, size_t *stride)
{
    for (size_t i = 0; i < letter_count; i++) {
        char letter = letters[i];
        int64_t is = dims[i];
        int32_t expected = expected_dim(call, letter);
        /* Routines count elements and rows in 32 bits. */
        if (is < 0 || is > INT32_MAX / 2)
            return REFUSE(call, "a dimension of %lld; at most %d",
                          (long long)is, INT32_MAX / 2);
        if (expected >= 0 && is != expected)
            return REFUSE(call, "buffer %zu: dimension %c is %lld, not %d",
                          call->buffer_count, letter, (long long)is, expected);
        call->dims[letter - 'a'] = (int32_t)is;
        *stride *= (size_t)is;
    }
    return true;
}

/* All buffers have the batch dimensions of the first. */
static bool take_batch(tow_lapack_call_t *call, const int64_t *dims,
                       size_t batch_rank)
{
    const XLA_FFI_Buffer *first = call->frame->args.args[0];
    size_t count = 1;
    for (size_t i = 0; i < batch_rank; i++) {
        if (dims[i] != first->dims[i])
            return REFUSE(call,
                          "buffer %zu: batch dimension %zu is %lld, not %lld",
                          call->buffer_count, i, (long long)dims[i],
                          (long long)first->dims[i]);
        count *= (size_t)dims[i];
    }
    call->matrix_count = count;
    return true;
}

/* `what` is the buffer's part of the description: "Tmn=0". Moves on to the next
 * part. */
static bool take_buffer(tow_lapack_call_t *call, const char **what,
                        const XLA_FFI_Buffer *buffer, size_t batch_rank)
{
    char kind = **what;
    const char *letters = *what + 1;
    size_t letter_count = strspn(letters, "abcdefghijklmnopqrstuvwxyz");
    *what = letters + letter_count;
    if (buffer->dtype != type_of(call, kind))
        return REFUSE(call, "buffer %zu has elements of type %d, not %d",
                      call->buffer_count, (int)buffer->dtype,
                      (int)type_of(call, kind));
    if ((size_t)buffer->rank != batch_rank + letter_count)
        return REFUSE(call, "buffer %zu has %lld dimensions, not %zu",
                      call->buffer_count, (long long)buffer->rank,
                      batch_rank + letter_count);
    size_t stride = size_of(call, kind);
    if (!take_batch(call, buffer->dims, batch_rank) ||
        !take_dims(call, letters, letter_count, buffer->dims + batch_rank,
                   &stride))
        return false;
    call->strides[call->buffer_count] = stride;
    call->buffers[call->buffer_count++] = buffer->data;
    return true;
}

static const char *skip(const char *what, const char *over)
{
    return what + strspn(what, over);
}

static bool take_arguments(tow_lapack_call_t *call, const char **what,
                           size_t batch_rank)
{
    const XLA_FFI_Args *args = &call->frame->args;
    for (; **what != '>'; *what = skip(*what, " ")) {
        if ((int64_t)call->buffer_count >= args->size)
            return REFUSE(call, "only %lld arguments", (long long)args->size);
        if (!take_buffer(call, what, args->args[call->buffer_count],
                         batch_rank))
            return false;
    }
    call->argument_count = call->buffer_count;
    if (args->size != (int64_t)call->argument_count)
        return REFUSE(call, "%lld arguments, not %zu", (long long)args->size,
                      call->argument_count);
    return true;
}

/* Initialises a result before the routine runs. */
static void prepare_result(tow_lapack_call_t *call, const char **what)
{
    size_t at = call->buffer_count - 1;
    size_t size = call->matrix_count * call->strides[at];
    char *to = call->buffers[at];
    const char *from = NULL;
    if (**what == '=') {
        from = call->buffers[(*what)[1] - '0'];
        *what += 2;
    }
    if (size == 0 || from == to) return;
    if (from != NULL)
        memcpy(to, from, size);
    else
        memset(to, 0, size);
}

/* In two passes: nothing is written before everything is checked. */
static bool take_results(tow_lapack_call_t *call, const char *what,
                         size_t batch_rank, bool prepares)
{
    const XLA_FFI_Rets *rets = &call->frame->rets;
    call->buffer_count = call->argument_count;
    for (; *what != '\0'; what = skip(what, " ")) {
        size_t result = call->buffer_count - call->argument_count;
        if ((int64_t)result >= rets->size)
            return REFUSE(call, "only %lld results", (long long)rets->size);
        if (!take_buffer(call, &what, rets->rets[result], batch_rank))
            return false;
        if (prepares)
            prepare_result(call, &what);
        else
            what = skip(what, "=0123456789");
    }
    if (rets->size != (int64_t)(call->buffer_count - call->argument_count))
        return REFUSE(call, "%lld results, not %zu", (long long)rets->size,
                      call->buffer_count - call->argument_count);
    return true;
}

static bool take_buffers(tow_lapack_call_t *call, const char *what)
{
    const XLA_FFI_Buffer *first = call->frame->args.args[0];
    size_t own = strspn(what + 1, "abcdefghijklmnopqrstuvwxyz");
    if ((size_t)first->rank < own)
        return REFUSE(call,
                      "the first argument has %lld dimensions, at least "
                      "%zu are needed",
                      (long long)first->rank, own);
    size_t batch_rank = (size_t)first->rank - own;
    if (!take_arguments(call, &what, batch_rank)) return false;
    what = skip(what, "> ");
    return take_results(call, what, batch_rank, false) &&
           take_results(call, what, batch_rank, true);
}

/* --- Attributes ----------------------------------------------------------- */

bool tow_lapack_letter(tow_lapack_call_t *call, const char *name,
                       const char *allowed, char *out_letter)
{
    const XLA_FFI_Scalar *scalar =
        tow_ffi_find_scalar(&call->frame->attrs, name, XLA_FFI_DataType_U8);
    if (scalar == NULL) return REFUSE(call, "no attribute %s of type u8", name);
    char letter = *(const char *)scalar->value;
    if (letter == '\0' || strchr(allowed, letter) == NULL)
        return REFUSE(call, "attribute %s is %d, not one of the letters %s",
                      name, letter, allowed);
    *out_letter = letter;
    return true;
}

bool tow_lapack_flag(tow_lapack_call_t *call, const char *name, bool *out_flag)
{
    const XLA_FFI_Scalar *scalar =
        tow_ffi_find_scalar(&call->frame->attrs, name, XLA_FFI_DataType_PRED);
    if (scalar == NULL)
        return REFUSE(call, "no attribute %s, true or false", name);
    *out_flag = *(const char *)scalar->value != 0;
    return true;
}

bool tow_lapack_number(tow_lapack_call_t *call, const char *name,
                       int32_t *out_number)
{
    const XLA_FFI_Scalar *scalar =
        tow_ffi_find_scalar(&call->frame->attrs, name, XLA_FFI_DataType_S32);
    if (scalar == NULL)
        return REFUSE(call, "no attribute %s of type i32", name);
    memcpy(out_number, scalar->value, sizeof(*out_number));
    return true;
}

/* --- Helpers for routines ------------------------------------------------- */

void *tow_lapack_scratch(tow_lapack_call_t *call, size_t count, size_t size)
{
    void *scratch = count <= SIZE_MAX / size ? malloc(count * size + 1) : NULL;
    if (scratch == NULL)
        tow_lapack_fail(call, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                        "no memory for a workspace of %zu x %zu bytes", count,
                        size);
    return scratch;
}

bool tow_lapack_wanted(tow_lapack_call_t *call, const void *answer,
                       int32_t *out_count)
{
    double count;
    if (call->real_size == sizeof(float)) {
        float rounded;
        memcpy(&rounded, answer, sizeof(rounded));
        count = ceil((double)rounded * (1 + 0x1p-23)); /* It may be below. */
    } else {
        memcpy(&count, answer, sizeof(count));
    }
    if (!(count <= INT32_MAX))
        return REFUSE(call,
                      "the matrix is too large: a workspace of %.0f "
                      "elements cannot be counted in 32 bits",
                      count);
    *out_count = count > 1 ? (int32_t)count : 1;
    return true;
}

bool tow_lapack_is_finite(const tow_lapack_call_t *call, const void *elements,
                          size_t count)
{
    size_t reals = count * (call->element_size / call->real_size);
    bool is_finite = true;
    if (call->real_size == sizeof(float)) {
        const float *values = elements;
        for (size_t i = 0; i < reals; i++)
            is_finite &= isfinite(values[i]) != 0;
    } else {
        const double *values = elements;
        for (size_t i = 0; i < reals; i++)
            is_finite &= isfinite(values[i]) != 0;
    }
    return is_finite;
}

void (*tow_lapack_find(tow_lapack_call_t *call, const char *name))(void)
{
    char full[16];
    snprintf(full, sizeof(full), "%c%s", ELEMENTS[call->element].letter, name);
    void *found = tow_lapack_library_find(full);
    if (found == NULL)
        tow_lapack_fail(call, XLA_FFI_Error_Code_UNIMPLEMENTED,
                        "the LAPACK of this host has no %s", full);
    return (void (*)(void))found;
}

/* --- The call ------------------------------------------------------------- */

static bool run(tow_lapack_call_t *call, const tow_lapack_routine_t *routine)
{
    if (!take_element(call)) return false;
    const char *missing = tow_lapack_library_open();
    if (missing != NULL)
        return tow_lapack_fail(call, XLA_FFI_Error_Code_UNIMPLEMENTED, "%s",
                               missing);
    const char *name = routine->names[call->is_complex];
    call->routine = name == NULL ? NULL : tow_lapack_find(call, name);
    return (name == NULL || call->routine != NULL) &&
           take_buffers(call, routine->buffers[call->is_complex]) &&
           (call->matrix_count == 0 || routine->run(call));
}

XLA_FFI_Error *tow_lapack_call(XLA_FFI_CallFrame *frame,
                               const tow_lapack_routine_t *routine)
{
    if (tow_ffi_answer_metadata(frame)) return NULL;
    tow_lapack_call_t call = {.frame = frame};
    for (size_t i = 0; i < sizeof(call.dims) / sizeof(*call.dims); i++)
        call.dims[i] = -1;
    if (run(&call, routine)) return NULL;
    char message[sizeof(call.problem) + 64];
    snprintf(message, sizeof(message), "linear algebra, %s: %s",
             routine->names[0], call.problem);
    return tow_ffi_error(frame->api, call.code, message);
}
