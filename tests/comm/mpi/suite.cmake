# What every MPI library must pass: the contract and the bitwise matrix by processes, and how a run ends when one of
# them fails. Wanted before: `suite`, with which the names of tests and programs begin; `launcher`; `libraries`, which
# are linked before Tessera's own; `worlds`, the numbers of processes of contract and matrix.
set(environment "MPIEXEC=${launcher}" ${leaks})

# suite_program(NAME SOURCES ... LINK ...): registered once for each number of processes.
function(suite_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${suite}_${name} ${ARG_SOURCES} harness.cpp)
  target_include_directories(${suite}_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${suite}_${name} PRIVATE ${libraries} ${ARG_LINK} tessera_flags GTest::gtest)
  foreach(ranks ${worlds})
    mpi_script_test(${suite}_${name}_${ranks} ${launch} ${ranks} $<TARGET_FILE:${suite}_${name}>)
    tessera_timeout(300 ${suite}_${name}_${ranks})
    tessera_computes(${suite}_${name}_${ranks})
    set_tests_properties(${suite}_${name}_${ranks} PROPERTIES COST 15)
  endforeach()
endfunction()
suite_program(contract_test SOURCES contract_test.cpp LINK comm_contract staged_contract tessera_comm)
suite_program(bitwise_test SOURCES bitwise_test.cpp split_layers_test.cpp LINK tessera_trainer)

mpi_script_test(${suite}_launch_test ${CMAKE_CURRENT_SOURCE_DIR}/launch_test.sh)
add_executable(${suite}_fault_program fault_program.cpp)
target_include_directories(${suite}_fault_program PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(${suite}_fault_program PRIVATE ${libraries} tessera_comm tessera_flags)
# suite_fault_test(NAME TEXT HOW RANKS_PER_HOST). Seconds: the deadline is 2; a launcher on a machine that cannot look up
# its own name takes 5 for each try.
function(suite_fault_test name text how ranks_per_host)
  # Where processes that play different hosts are on one machine, UCX copies straight from each other's memory, and aborts
  # its own process if the other is gone. Between true hosts there is no such transport; without it UCX is slower here.
  mpi_script_test(${suite}_fault_${name} ${CMAKE_COMMAND} -E env "UCX_TLS=^cma" ${ARGN}
    ${PROJECT_SOURCE_DIR}/tests/comm/expect_failure.sh 60 ${text}
    ${launch} 3 $<TARGET_FILE:${suite}_fault_program> ${how} ${ranks_per_host})
endfunction()
set(lost "the process of rank 1 is gone\\|no answer from rank 1 within 2.0 s\\|rank 1 cannot be reached")
# LEAVE_THE_REST: how many of the 3 end by what they say, with rank 1 where that throws or exits.
foreach(ranks_per_host 0 1)  # shared memory, messages
  suite_fault_test(throw_${ranks_per_host} "rank [02]: .*rank 1 failed: the disk is full" throw ${ranks_per_host} LEAVE_THE_REST=3)
  suite_fault_test(exit_${ranks_per_host} "rank 1 failed: its process exits in the middle of a run" exit ${ranks_per_host} LEAVE_THE_REST=3)
  suite_fault_test(vanish_${ranks_per_host} ${lost} vanish ${ranks_per_host} LEAVE_THE_REST=2)
  suite_fault_test(kill_${ranks_per_host} ${lost} kill ${ranks_per_host} LEAVE_THE_REST=2)
  # Rank 1 does not end by itself.
  suite_fault_test(stall_${ranks_per_host} "no answer from rank [012].* within 2.0 s" stall ${ranks_per_host})
endforeach()
suite_fault_test(unreachable "rank [02]: all_gather .* rank 1 cannot be reached: MPI_Isend: " unreachable 1 LEAVE_THE_REST=3)
# The launcher may end the others first, and its report is all there is.
set(ended "rank 1\\|signal 9\\|KILLED BY SIGNAL: 9")
suite_fault_test(kill_all ${ended} kill 0)
suite_fault_test(absent "starting MPI: MPI did not return within 3.0 s" absent 0)
