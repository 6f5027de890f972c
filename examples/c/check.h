/* Error handling of the examples: print the message and exit. */
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
