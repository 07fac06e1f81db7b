"""The two files a user writes, read into frozen values or refused with file:line:column."""
