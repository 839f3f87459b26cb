# One ctest entry per folder below test/ and per file directly in it, each with its own time limit. `ctest -j` runs them
# side by side, but for those whose graphs of many processes need the machine for themselves.
set(KV_TEST_LIMIT_S 300)
set(KV_TEST_LIMIT_nodes_S 900)
set(KV_TEST_LIMIT_ros_S 600)
set(KV_TEST_LIMIT_kvcache_S 900)
set(KV_TEST_LIMIT_inference_S 900)
set(KV_TESTS_ALONE nodes ros)
set(KV_FOLDERS_WITH_OWN_COMMAND sglang vllm) # make environments of 3 GB first; CONTRIBUTING.md has the commands

function(kv_add_test name path)
  set(_limit_s ${KV_TEST_LIMIT_S})
  if(DEFINED KV_TEST_LIMIT_${name}_S)
    set(_limit_s ${KV_TEST_LIMIT_${name}_S})
  endif()
  ament_add_pytest_test(${name} ${path}
    TIMEOUT ${_limit_s} WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
  if(name IN_LIST KV_TESTS_ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

function(kv_add_tests)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import launch_ros, launch_testing"
    RESULT_VARIABLE _launch_is_missing OUTPUT_QUIET ERROR_QUIET)
  file(GLOB _files CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" "test/test_*.py")
  foreach(_file IN LISTS _files)
    get_filename_component(_name ${_file} NAME_WE)
    # A file whose tests are all skipped ends with an error: register it only where it can run.
    if(_name MATCHES "launch" AND NOT _launch_is_missing EQUAL 0)
      message(STATUS "launch_ros and launch_testing are not installed: ${_file} is not run")
      continue()
    endif()
    string(REGEX REPLACE "^test_" "" _name ${_name})
    kv_add_test(${_name} ${_file})
  endforeach()

  file(GLOB_RECURSE _files CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/test" "test/*/test_*.py")
  list(TRANSFORM _files REPLACE "/.*" "" OUTPUT_VARIABLE _folders)
  list(REMOVE_DUPLICATES _folders)
  list(REMOVE_ITEM _folders ${KV_FOLDERS_WITH_OWN_COMMAND})
  foreach(_folder IN LISTS _folders)
    kv_add_test(${_folder} test/${_folder})
  endforeach()
endfunction()
