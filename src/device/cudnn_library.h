// libcudnn, loaded when attention on a GPU first asks for it.
#pragma once

namespace tessera::device {

// What dlopen() gave. EnvironmentError naming the file where it cannot be loaded, or is older than this
// build's. It stays for good.
void* cudnn_library();

}  // namespace tessera::device
