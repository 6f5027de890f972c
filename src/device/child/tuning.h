/* Constants of child processes that someone may tune. */
#ifndef TOW_DEVICE_CHILD_TUNING_H_
#define TOW_DEVICE_CHILD_TUNING_H_

#include <stddef.h>

/* The end of a child's standard output and error that error messages quote. */
#define TOW_CHILD_LAST_OUTPUT_BYTES_MAX ((size_t)800)

/* A text of a child in a message: an error, mostly. */
#define TOW_CHILD_TEXT_BYTES_MAX ((size_t)64 << 10)

#endif /* TOW_DEVICE_CHILD_TUNING_H_ */
