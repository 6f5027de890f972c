/* Errors as texts, for Python. */
#ifndef TOW_PJRT_PYTHON_TEXT_H_
#define TOW_PJRT_PYTHON_TEXT_H_

#include "base/status.h"

/* "CODE: message", for towpath_text_free; NULL for TOW_OK. */
char *tow_python_error_text(tow_status_t take_status);

#endif /* TOW_PJRT_PYTHON_TEXT_H_ */
