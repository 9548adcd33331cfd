/* A stand-in for bcryptprimitives.dll, which wine 8 lacks and Rust's std asks for random bytes. For tests only. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(void *bytes, ULONG len); /* RtlGenRandom, of advapi32 */

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *bytes, SIZE_T len) { return SystemFunction036(bytes, (ULONG)len); }
