/* The words under which other programs see this process (/proc/PID/cmdline, ps):
 * for one that was forked and is something else than its parent. */
#ifndef TOW_TOOL_TITLE_H_
#define TOW_TOOL_TITLE_H_

#include <stddef.h>

/* Kept until the process ends. Where the kernel does not let us it goes on under
 * its parent's words: they are for people. */
void tow_title_set(char *const words[], size_t count);

#endif /* TOW_TOOL_TITLE_H_ */
