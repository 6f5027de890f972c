/* The LAPACK library, loaded once and never unloaded. */
#ifndef TOW_DEVICE_XLA_CPU_LAPACK_LIBRARY_IMPL_H_
#define TOW_DEVICE_XLA_CPU_LAPACK_LIBRARY_IMPL_H_

/* NULL on success, else an error message. Any thread. */
const char *tow_lapack_library_open(void);

/* The routine of that Fortran name, "sgetrf"; NULL if the library has none. */
void *tow_lapack_library_find(const char *routine);

#endif /* TOW_DEVICE_XLA_CPU_LAPACK_LIBRARY_IMPL_H_ */
