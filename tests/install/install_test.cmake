# Installs the build tree, moves the result elsewhere, and builds and runs consumers that know that place alone.
foreach(name SOURCE BUILD WORK CONFIG GENERATOR C_COMPILER CXX_COMPILER LIBDIR)
  if(NOT ${name})
    message(FATAL_ERROR "${name} is not set; tests/install/CMakeLists.txt sets it")
  endif()
endforeach()
set(sanitizers "")
if(SANITIZE)
  set(sanitizers "-fsanitize=${SANITIZE}")
endif()

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed with ${status}:\n${output}")
  endif()
  message(STATUS "${what}: well")
  set(output "${output}" PARENT_SCOPE)
endfunction()

# consumer(FOLDER [CMAKE_ARGUMENT...]): configured and built on its own, in ${WORK}/<its name>.
function(consumer folder)
  get_filename_component(name ${folder} NAME)
  run("configuring ${name}" ${CMAKE_COMMAND} -S ${folder} -B ${WORK}/${name} -G ${GENERATOR}
      -D CMAKE_PREFIX_PATH=${PREFIX} -D CMAKE_BUILD_TYPE=${CONFIG} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
      "-DCMAKE_C_FLAGS=${sanitizers}" "-DCMAKE_CXX_FLAGS=${sanitizers}" ${ARGN})
  file(STRINGS ${WORK}/${name}/CMakeCache.txt found REGEX "^tessera_DIR:")
  if(NOT found MATCHES "=${PREFIX}/")
    message(FATAL_ERROR "${name} found another package: ${found}")
  endif()
  run("building ${name}" ${CMAKE_COMMAND} --build ${WORK}/${name} --config ${CONFIG})
endfunction()

function(expect_output what pattern)
  run("${what}" ${ARGN})
  if(NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${what} printed no '${pattern}':\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run("installing" ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${WORK}/first)
set(PREFIX "${WORK}/moved to a folder")
file(RENAME ${WORK}/first ${PREFIX})

# expect_no_way_back(FILE...): what is installed must not lead back here.
function(expect_no_way_back)
  foreach(file IN LISTS ARGN)
    file(READ ${file} text)
    foreach(path ${SOURCE} ${BUILD} ${WORK})
      string(FIND "${text}" "${path}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "${file} names ${path}")
      endif()
    endforeach()
  endforeach()
endfunction()

file(GLOB package ${PREFIX}/${LIBDIR}/cmake/tessera/*.cmake)
list(LENGTH package files)
if(files LESS 5)
  message(FATAL_ERROR "the package should have config, version, targets, their configuration and oneDNN: ${package}")
endif()
expect_no_way_back(${package})
foreach(header tessera.h engine.h c_api.h c_checkpoint.h)
  if(NOT EXISTS ${PREFIX}/include/tessera/${header})
    message(FATAL_ERROR "tessera/${header} is not installed")
  endif()
endforeach()
expect_output("the installed tool" "[0-9]+\\.[0-9]+" ${PREFIX}/bin/tessera --version)

consumer(${SOURCE}/examples/embed)
expect_output("spiral, two ranks, stage 3" "ranks 2  stage 3  accuracy 0\\.[0-9]+" ${WORK}/embed/spiral 2 3 5)
consumer(${SOURCE}/examples/embed_c)
expect_output("spiral in C, two ranks, stage 3" "ranks 2  stage 3  accuracy 0\\.[0-9]+" ${WORK}/embed_c/spiral_c 2 3 5 ${WORK}/spiral)
expect_output("spiral in C, continued by one rank" "continues behind step 5.*accuracy 0\\.[0-9]+" ${WORK}/embed_c/spiral_c 1 0 7 ${WORK}/spiral)
consumer(${SOURCE}/examples/two_operators)
expect_output("two operators on two ranks" "the same losses, bit for bit" ${WORK}/two_operators/two_operators 50)
consumer(${SOURCE}/examples/train_gpt)
consumer(${SOURCE}/examples/larger_than_memory)
if(NOT SANITIZE)  # shadow memory is beyond the limit
  expect_output("states on disk, under a limit of memory" "in memory: 0\\.0[0-9] GiB planned.* on disk: 0\\.14 GiB"
    ${WORK}/larger_than_memory/larger_than_memory ${SOURCE}/README.md --preset gpt2-tiny --limit 2 --directory ${WORK})
endif()
consumer(${SOURCE}/tests/install/consumer)
expect_output("a consumer of everything" "tessera::tessera links" ${WORK}/consumer/consumer)

# By pkg-config, from where it was moved to. A program in C links by the C compiler.
find_program(PKG_CONFIG NAMES pkgconf pkg-config)
file(GLOB of_pkg_config ${PREFIX}/${LIBDIR}/pkgconfig/*.pc)
expect_no_way_back(${of_pkg_config})

# by_pkg_config(PACKAGE SOURCE PROGRAM COMPILER...): compiles and links it in one call.
function(by_pkg_config package source program)
  run("the flags of ${package}" ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${PREFIX}/${LIBDIR}/pkgconfig
      ${PKG_CONFIG} --cflags --libs ${package})
  separate_arguments(flags UNIX_COMMAND "${output}")
  run("building ${program} by pkg-config" ${ARGN} ${sanitizers} ${source} -o ${WORK}/${program} ${flags})
endfunction()
if(NOT PKG_CONFIG)
  message(STATUS "there is no pkg-config: its files are not tried")
else()
  set(ENV{LD_LIBRARY_PATH} "${PREFIX}/${LIBDIR}:$ENV{LD_LIBRARY_PATH}")  # where libraries are shared
  by_pkg_config(tessera ${SOURCE}/examples/embed_c/spiral.c spiral_c_pc ${C_COMPILER} -std=c99 -Wall -Wextra -Wpedantic -Werror)
  expect_output("spiral in C, by pkg-config" "ranks 2  stage 3  accuracy 0\\.[0-9]+" ${WORK}/spiral_c_pc 2 3 5)
  by_pkg_config(tessera-engine ${SOURCE}/examples/embed/spiral.cpp spiral_pc ${CXX_COMPILER} -std=c++20)
  expect_output("spiral, by pkg-config" "ranks 2  stage 3  accuracy 0\\.[0-9]+" ${WORK}/spiral_pc 2 3 5)
  by_pkg_config(tessera ${SOURCE}/tests/install/consumer/consumer.cpp consumer_pc ${CXX_COMPILER} -std=c++20)
  expect_output("a consumer of everything, by pkg-config" "tessera::tessera links" ${WORK}/consumer_pc)
endif()

# The Debian packages: what they hold, and what they ask for. scripts/package.sh --check installs them.
find_program(DPKG_DEB dpkg-deb)
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
if(DPKG_DEB AND DPKG_SHLIBDEPS AND NOT SANITIZE)
  run("packing" ${CMAKE_CPACK_COMMAND} --config ${BUILD}/CPackConfig.cmake -G DEB -C ${CONFIG} -B ${WORK}/deb
      -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip)
  function(expect_in_package package option)
    file(GLOB file ${WORK}/deb/${package}_*.deb)
    run("what ${package} says to ${option}" ${DPKG_DEB} ${option} "${file}")
    foreach(pattern IN LISTS ARGN)
      if(NOT output MATCHES "${pattern}")
        message(FATAL_ERROR "${package} has no '${pattern}':\n${output}")
      endif()
    endforeach()
  endfunction()
  expect_in_package(tessera --contents "/usr/bin/tessera\n" "/usr/share/doc/tessera/copyright\n")
  expect_in_package(tessera --field "Section: science")
  file(STRINGS ${PREFIX}/${LIBDIR}/cmake/tessera/tesseraConfig.cmake with_cuda REGEX "tessera_WITH_CUDA TRUE")
  if(NOT with_cuda)
    expect_in_package(tessera --field "Depends: .*libc6")
  endif()
  expect_in_package(libtessera-dev --contents "/usr/include/tessera/engine.h\n" "/cmake/tessera/tesseraConfig.cmake\n"
    "/pkgconfig/tessera-engine.pc\n" "/libtessera_engine\\.(a|so)" "/usr/share/doc/libtessera-dev/copyright\n")
  expect_in_package(libtessera-dev --field "Depends: [^\n]+" "Section: libdevel")
endif()

# Inside another project it is the library alone: no tool, no tests, no package that only these need, nothing to install.
run("configuring within another project" ${CMAKE_COMMAND} -S ${SOURCE}/tests/install/included -B ${WORK}/included
    -G ${GENERATOR} -D TESSERA=${SOURCE} -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D TESSERA_WITH_CUDA=off -D TESSERA_WITH_MPI=0
    -D CMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -D CMAKE_DISABLE_FIND_PACKAGE_tomlplusplus=ON
    -D CMAKE_DISABLE_FIND_PACKAGE_GTest=ON -D CMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
run("installing within another project" ${CMAKE_COMMAND} --install ${WORK}/included --prefix ${WORK}/included/nothing)
if(EXISTS ${WORK}/included/nothing)
  message(FATAL_ERROR "a project that includes the library installs it, unasked")
endif()

# A word for an optional part that is none of CMake's is refused.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/misspelt -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
                        -D TESSERA_WITH_MPI=none -D TESSERA_TESTS=OFF
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0 OR NOT output MATCHES "TESSERA_WITH_MPI is 'none'; AUTO, ON or OFF")
  message(FATAL_ERROR "TESSERA_WITH_MPI=none was not refused:\n${output}")
endif()

# A version that is not there is refused, and so are a component, a project without C++, and a machine without what was
# built in: CUDA's toolkit, liburing, PCRE2.
function(expect_refusal argument pattern)
  file(REMOVE_RECURSE ${WORK}/refused)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/tests/install/refused -B ${WORK}/refused -G ${GENERATOR}
                          -D CMAKE_PREFIX_PATH=${PREFIX} ${argument}
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(status EQUAL 0 OR NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${argument} was not refused for '${pattern}':\n${output}")
  endif()
endfunction()
expect_refusal(-DWANTED=0.99 "tesseraConfig.cmake, version: 0\\.1\\.0")
expect_refusal(-DCOMPONENT=motor "tessera has no component 'motor'")
file(STRINGS ${PREFIX}/${LIBDIR}/cmake/tessera/tesseraConfig.cmake shared REGEX "tessera_SHARED TRUE")
if(shared)  # it needs no more than itself
  return()
endif()
expect_refusal(-DNO_CXX=ON "needs a project that enables CXX")
file(STRINGS ${PREFIX}/${LIBDIR}/cmake/tessera/tesseraConfig.cmake with_cuda REGEX "tessera_WITH_CUDA TRUE")
if(with_cuda)
  expect_refusal(-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON "no toolkit of that major version was found")
endif()
file(STRINGS ${PREFIX}/${LIBDIR}/cmake/tessera/tesseraConfig.cmake with_liburing REGEX "tessera_WITH_LIBURING TRUE")
if(with_liburing)
  expect_refusal(-DTESSERA_LIBURING_LIBRARY=OFF "built with liburing, which was not found")
endif()
file(STRINGS ${PREFIX}/${LIBDIR}/cmake/tessera/tesseraConfig.cmake with_text REGEX "tessera_WITH_TEXT TRUE")
if(with_text)
  expect_refusal(-DTESSERA_PCRE2_LIBRARY=OFF "built with tokenizers, and PCRE2 or ICU was not found")
endif()
