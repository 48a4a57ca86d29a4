/* What autograd asks of CUDA before it goes back through tensors of cuda:0, answered where there is no driver. */
static signed char devices = 0;
void pretend_devices(signed char count) { devices = count; }
signed char _ZN3c104cuda12device_countEv(void) { return devices; } /* c10::cuda::device_count() */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = device == 0; return 0; }
