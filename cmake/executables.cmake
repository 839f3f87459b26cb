# Executables for `ros2 run` and launch: lib/kv_agent_ros/<name> runs main() of kv_agent_ros.<module>.
set(KV_AGENT_ROS_SHEBANG "${Python3_EXECUTABLE}" CACHE STRING "Interpreter line of the installed executables")

function(kv_executable name module)
  set(_file "${CMAKE_CURRENT_BINARY_DIR}/executables/${name}")
  file(WRITE "${_file}" "#!${KV_AGENT_ROS_SHEBANG}\nfrom kv_agent_ros.start import start\n\nstart('${module}')\n")
  # `colcon build --symlink-install` links to this very file, so that it must be executable itself.
  file(CHMOD "${_file}" PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  install(PROGRAMS "${_file}" DESTINATION lib/${PROJECT_NAME})
endfunction()
