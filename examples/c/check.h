/* What a program does with a status that is not TOW_OK: these give up. */
#ifndef CHECK_H_
#define CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <towpath/status.h>

static inline void check(tow_status_t status)
{
    if (status == TOW_OK) return;
    fprintf(stderr, "%s: %s\n", tow_code_name(tow_status_code(status)),
            tow_status_message(status));
    exit(1);
}

#endif /* CHECK_H_ */
