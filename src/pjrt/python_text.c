#include "pjrt/python_text.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

char *tow_python_error_text(tow_status_t take_status)
{
    static const char no_memory[] = "RESOURCE_EXHAUSTED: out of memory";
    if (take_status == TOW_OK) return NULL;
    const char *code = tow_code_name(tow_status_code(take_status));
    const char *message = tow_status_message(take_status);
    const size_t size = strlen(code) + strlen(message) + 3;
    char *text = tow_malloc(size);
    if (text != NULL) snprintf(text, size, "%s: %s", code, message);
    tow_status_release(take_status);
    return text != NULL ? text : tow_strdup(no_memory);
}
