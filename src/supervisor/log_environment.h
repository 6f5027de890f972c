/* Log settings from environment variables. */
#ifndef TOW_SUPERVISOR_LOG_ENVIRONMENT_H_
#define TOW_SUPERVISOR_LOG_ENVIRONMENT_H_

#include "base/log.h"

/* A log whose lines name `source`. TOW_LOG sets the level (debug, info, warn,
 * error, off; default warn), TOW_LOG_FORMAT the format (text or json). */
tow_log_t tow_log_from_environment(const char *source);

#endif /* TOW_SUPERVISOR_LOG_ENVIRONMENT_H_ */
