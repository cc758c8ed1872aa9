// libcudnn, loaded when attention on a GPU first asks for it.
#pragma once

namespace tessera::device {

// The library as dlopen() returned it; it stays loaded. Throws EnvironmentError naming the file if it cannot
// be loaded or is older than this build's.
void* cudnn_library();

}  // namespace tessera::device
