/* The parts of XLA's foreign function interface that every handler of a custom
 * call needs, in C. */
#ifndef TOW_DEVICE_XLA_CPU_FFI_H_
#define TOW_DEVICE_XLA_CPU_FFI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

/* XLA's error codes have the same numbers as tow_code_t. XLA copies the message
 * and owns the error. */
static inline XLA_FFI_Error *tow_ffi_error(const XLA_FFI_Api *api,
                                           XLA_FFI_Error_Code code,
                                           const char *message)
{
    XLA_FFI_Error_Create_Args args = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
        .message = message,
        .errc = code,
    };
    return api->XLA_FFI_Error_Create(&args);
}

/* XLA queries every handler for the version of the interface that it was built
 * for. Replies to such a query; false if the call is none. */
static inline bool tow_ffi_answer_metadata(const XLA_FFI_CallFrame *frame)
{
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (extension == NULL || extension->type != XLA_FFI_Extension_Metadata)
        return false;
    XLA_FFI_Metadata *metadata =
        ((XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = 0;
    return true;
}

/* A scalar attribute; NULL if it is missing or of another type. */
static inline const XLA_FFI_Scalar *tow_ffi_find_scalar(
    const XLA_FFI_Attrs *attrs, const char *name, XLA_FFI_DataType type)
{
    for (int64_t i = 0; i < attrs->size; i++) {
        const XLA_FFI_ByteSpan *is = attrs->names[i];
        if (is->len != strlen(name) || memcmp(is->ptr, name, is->len) != 0 ||
            attrs->types[i] != XLA_FFI_AttrType_SCALAR)
            continue;
        const XLA_FFI_Scalar *scalar = (const XLA_FFI_Scalar *)attrs->attrs[i];
        return scalar->dtype == type ? scalar : NULL;
    }
    return NULL;
}

#endif /* TOW_DEVICE_XLA_CPU_FFI_H_ */
