/* Fencing across rebalances: two members, one task that moves between them, and zombies.
   A member reads records under a generation of the group and commits their offset with a generation; the
   coordinator takes it only if it is the present one (KIP-447). The group moves on at any time; a member
   hears of it at any time after that, or late.
   GEN 1: the commit carries the generation under which its records were read
       0: it carries the newest generation that the member knows
       2: it carries none, and the coordinator checks nothing
   DROP 1: a member that hears of a new generation drops what it has not committed and reads again
        0: it goes on with it
   Property: the committed output is each record once: a commit is of the records from the committed
   offset on, and of no others. */
#define NREC 3
#define NGEN 4
byte gen = 1;              /* of the group */
byte owner = 0;            /* who has the task in this generation */
byte off = 0;              /* committed offset */
byte heard[2];             /* the newest generation that a member knows */

active proctype Group() {
  do
  :: atomic { gen < NGEN -> gen++; if :: owner = 0 :: owner = 1 fi }
  :: break
  od
}

proctype Member(byte me) {
  byte from = 0, to = 0, under = 0; bool open = false;
  do
  :: atomic { heard[me] < gen ->                               /* the news of an assignment arrives */
       heard[me] = gen;
       if :: open && DROP == 1 -> open = false :: else -> skip fi }
  :: atomic { !open && heard[me] == gen && owner == me && off < NREC ->
       open = true; from = off; to = off + 1; under = heard[me] }   /* OffsetFetch, then a record */
  :: atomic { open && to < NREC -> to++ }
  :: atomic { open ->
       byte with;
       if :: GEN == 1 -> with = under :: GEN == 0 -> with = heard[me] :: else -> with = gen fi;
       if
       :: with == gen ->                                       /* accepted, in one transaction with the outputs */
            assert(from == off);
            off = to
       :: else -> skip                                         /* ILLEGAL_GENERATION */
       fi;
       open = false }
  :: atomic { open -> open = false }                           /* it dies, or its transaction times out */
  :: off == NREC -> break
  :: timeout -> break
  od
}

init { atomic { heard[0] = 1; heard[1] = 0; run Member(0); run Member(1) } }
