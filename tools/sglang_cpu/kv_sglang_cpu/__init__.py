"""What SGLang expects of a GPU's packages, on a machine without one; see README.md."""
