#include "tool/text_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define READ_BYTES 65536

static tow_status_t read_all(FILE *file, size_t bytes_max, tow_text_t *text)
{
    for (;;) {
        if (text->count > bytes_max)
            return TOW_ERROR(TOW_OUT_OF_RANGE,
                             "the file is larger than the limit of %zu bytes",
                             bytes_max);
        if (!tow_vec_reserve(text, text->count + READ_BYTES))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        const size_t more =
            fread(text->items + text->count, 1, READ_BYTES, file);
        text->count += more;
        if (more == 0) break;
    }
    return ferror(file) ? TOW_ERROR(TOW_UNAVAILABLE, "%s", strerror(errno))
                        : TOW_OK;
}

tow_status_t tow_text_file_read(const char *path, size_t bytes_max,
                                tow_text_t *text)
{
    if (strcmp(path, "-") == 0) return read_all(stdin, bytes_max, text);
    FILE *file = fopen(path, "r");
    if (file == NULL) return TOW_ERROR(TOW_NOT_FOUND, "%s", strerror(errno));
    tow_status_t status = read_all(file, bytes_max, text);
    fclose(file);
    return status;
}
