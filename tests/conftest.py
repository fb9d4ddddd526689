"""Its presence puts this folder on the path, so that tests in subfolders can import `tiny`."""
