/* Sets the command line that /proc/PID/cmdline and ps show, for a forked
 * process that has another role than its parent. */
#ifndef TOW_SUPERVISOR_PROCESS_TITLE_H_
#define TOW_SUPERVISOR_PROCESS_TITLE_H_

#include <stddef.h>

/* The copy lives until the process exits. If the kernel refuses, the process
 * keeps its parent's command line: it is only for display. */
void tow_process_title_set(char *const words[], size_t count);

#endif /* TOW_SUPERVISOR_PROCESS_TITLE_H_ */
