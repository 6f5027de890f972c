/* TOW_VERSION_STRING comes from the build; the commit from the source tree, when
 * there is one. */
#ifndef TOW_TOOL_VERSION_H_
#define TOW_TOOL_VERSION_H_

#ifndef TOW_VERSION_STRING
#error "the build defines TOW_VERSION_STRING"
#endif

/* Twelve digits and "+changes" if the tree differs; "unknown" outside git. */
const char *tow_version_commit(void);

#endif /* TOW_TOOL_VERSION_H_ */
