/* The version and commit of this build. */
#ifndef TOW_TOOL_VERSION_H_
#define TOW_TOOL_VERSION_H_

#include <stddef.h>

#ifndef TOW_VERSION_STRING
#error "the build defines TOW_VERSION_STRING"
#endif

/* Twelve digits, with "+changes" for a modified tree; "unknown" outside git. */
const char *tow_version_commit(void);
/* The first line of `tow version`. */
void tow_version_line(char *line, size_t capacity);

#endif /* TOW_TOOL_VERSION_H_ */
