/* A fuzz target: one function that takes bytes and must come back. libFuzzer
 * calls it a million times with bytes that it makes up (`make fuzz`); driver.c
 * calls it once for each file of the corpus (`make test`). */
#ifndef TOW_TESTS_FUZZ_FUZZ_H_
#define TOW_TESTS_FUZZ_FUZZ_H_

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#endif /* TOW_TESTS_FUZZ_FUZZ_H_ */
