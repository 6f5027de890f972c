#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void tow_assert_failed(const char *file, int line, const char *expression)
{
    fprintf(stderr, "towpath: assertion failed at %s:%d: %s\n", file, line,
            expression);
    fflush(stderr);
    abort();
}
