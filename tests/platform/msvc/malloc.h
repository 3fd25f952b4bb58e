/* Nothing of it is used: for syntax checks. */
